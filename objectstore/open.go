package objectstore

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Open opens the store that rawURL names:
//
//	mem:                       a new Memory
//	file:///absolute/path      a Dir; nothing in the path is percent-decoded
//	s3://BUCKET[/PREFIX][?…]   an S3, with the parameters
//	    region=REGION          by default that of the AWS configuration
//	    endpoint=URL           of a store that is not AWS
//	    path-style=true|false  by default true with an endpoint, else false
//
// Unknown parameters are refused. It does not [Probe].
func Open(ctx context.Context, rawURL string) (Bucket, error) {
	scheme, rest, _ := strings.Cut(rawURL, ":")
	switch scheme {
	case "mem":
		if strings.Trim(rest, "/") != "" {
			return nil, fmt.Errorf("object store %s: mem: takes nothing behind it", rawURL)
		}
		return NewMemory(), nil
	case "file":
		path, err := filePath(rawURL)
		if err != nil {
			return nil, fmt.Errorf("object store: %w", err)
		}
		if strings.ContainsAny(path, "?#") {
			return nil, fmt.Errorf("object store %s: file: takes no parameters", rawURL)
		}
		return OpenDir(vfs.Default, path)
	case "s3":
		cfg, prefix, err := ParseS3URL(rawURL)
		if err != nil {
			return nil, fmt.Errorf("object store: %w", err)
		}
		b, err := NewS3(ctx, cfg)
		if err != nil {
			return nil, err
		}
		return Prefix(b, prefix)
	}
	return nil, fmt.Errorf("object store %q: want mem:, file:///absolute/path or s3://bucket/prefix", rawURL)
}

// filePath returns the path of file:///p, file://localhost/p or, as Java writes it, file:/p.
func filePath(location string) (string, error) {
	path := strings.TrimPrefix(location, "file:")
	if strings.HasPrefix(path, "//") {
		path = strings.TrimPrefix(path[2:], "localhost")
	}
	if !strings.HasPrefix(path, "/") {
		return "", fmt.Errorf("%s: want an absolute path, file:///path", location)
	}
	return path, nil
}

// ParseS3URL takes s3://BUCKET[/PREFIX][?…] apart, as [Open] has it.
func ParseS3URL(rawURL string) (cfg S3Config, prefix string, err error) {
	rest, ok := strings.CutPrefix(rawURL, "s3://")
	if !ok {
		return cfg, "", fmt.Errorf("%s: want s3://bucket/prefix", rawURL)
	}
	rest, query, _ := strings.Cut(rest, "?")
	cfg.Bucket, prefix, _ = strings.Cut(rest, "/")
	prefix = strings.TrimSuffix(prefix, "/")
	if err := checkBucketName(cfg.Bucket); err != nil {
		return cfg, "", fmt.Errorf("%s: %w", rawURL, err)
	}
	if prefix != "" {
		if err := CheckKey(prefix); err != nil {
			return cfg, "", fmt.Errorf("%s: prefix: %w", rawURL, err)
		}
	}
	params, err := url.ParseQuery(query)
	if err != nil {
		return cfg, "", fmt.Errorf("%s: %w", rawURL, err)
	}
	if err := cfg.setParams(params); err != nil {
		return cfg, "", fmt.Errorf("%s: %w", rawURL, err)
	}
	return cfg, prefix, nil
}

func (c *S3Config) setParams(params url.Values) error {
	for name, values := range params {
		if len(values) != 1 || values[0] == "" {
			return fmt.Errorf("parameter %s wants one value", name)
		}
		switch name {
		case "region":
			c.Region = values[0]
		case "endpoint":
			u, err := url.Parse(values[0])
			if err != nil || u.Host == "" || !slices.Contains([]string{"http", "https"}, u.Scheme) {
				return fmt.Errorf("endpoint %q: want http://host:port or https://host", values[0])
			}
			c.Endpoint = strings.TrimSuffix(values[0], "/")
		case "path-style":
		default:
			return fmt.Errorf("unknown parameter %q: there are region, endpoint and path-style", name)
		}
	}
	c.PathStyle = c.Endpoint != ""
	if v := params.Get("path-style"); v != "" {
		b, err := strconv.ParseBool(v)
		if err != nil {
			return fmt.Errorf("path-style %q: want true or false", v)
		}
		c.PathStyle = b
	}
	return nil
}

func checkBucketName(name string) error {
	switch {
	case name == "":
		return errors.New("no bucket")
	case strings.Contains(name, "@"):
		return errors.New("credentials do not belong into the URL: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
	case len(name) > 255 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") != "":
		return fmt.Errorf("%q is no bucket name", name)
	}
	return nil
}
