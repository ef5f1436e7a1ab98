// Package archtest holds the shape of the project as a test: which package may import
// which, that the functions which documents name exist, and a few bans.
package archtest
