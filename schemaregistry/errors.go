package schemaregistry

import (
	"fmt"
	"net/http"
	"strings"
)

// An apiError is an answer that is not 200. Its code is Confluent's, which clients act upon.
type apiError struct {
	status  int
	code    int
	message string
}

func (e *apiError) Error() string { return fmt.Sprintf("%d: %s", e.code, e.message) }

func subjectNotFound(subject string) error {
	return &apiError{http.StatusNotFound, 40401, fmt.Sprintf("Subject '%s' not found.", subject)}
}

func versionNotFound(version string) error {
	return &apiError{http.StatusNotFound, 40402, fmt.Sprintf("Version %s not found.", version)}
}

func schemaNotFound(id string) error {
	return &apiError{http.StatusNotFound, 40403, strings.Join(strings.Fields("Schema "+id+" not found"), " ")}
}

func subjectSoftDeleted(subject string) error {
	return &apiError{http.StatusNotFound, 40404, fmt.Sprintf("Subject '%s' was soft deleted already: permanent=true deletes it for good", subject)}
}

func subjectNotSoftDeleted(subject string) error {
	return &apiError{http.StatusNotFound, 40405, fmt.Sprintf("Subject '%s' must be soft deleted before it is deleted for good", subject)}
}

func versionSoftDeleted(subject string, version int) error {
	return &apiError{http.StatusNotFound, 40406, fmt.Sprintf("Subject '%s' version %d was soft deleted already: permanent=true deletes it for good", subject, version)}
}

func versionNotSoftDeleted(subject string, version int) error {
	return &apiError{http.StatusNotFound, 40407, fmt.Sprintf("Subject '%s' version %d must be soft deleted before it is deleted for good", subject, version)}
}

func compatibilityNotConfigured(subject string) error {
	return &apiError{http.StatusNotFound, 40408, fmt.Sprintf("Subject '%s' does not have subject-level compatibility configured", subject)}
}

func modeNotConfigured(subject string) error {
	return &apiError{http.StatusNotFound, 40409, fmt.Sprintf("Subject '%s' does not have subject-level mode configured", subject)}
}

// tableUnknown is an error that goes away: clients repeat the request.
func tableUnknown(message string) error {
	return &apiError{http.StatusInternalServerError, 50002, "A table that must hold the schema could not be asked, try again: " + message}
}

func incompatible(message string) error {
	return &apiError{http.StatusConflict, http.StatusConflict, message}
}

func invalidSchema(format string, args ...any) error {
	return &apiError{http.StatusUnprocessableEntity, 42201, "Invalid schema: " + fmt.Sprintf(format, args...)}
}

func invalidVersion(version string) error {
	return &apiError{http.StatusUnprocessableEntity, 42202, fmt.Sprintf("The specified version '%s' is not a valid version id: it is a number from 1 to 2147483647, or \"latest\"", version)}
}

func invalidLevel(l string) error {
	return &apiError{http.StatusUnprocessableEntity, 42203, fmt.Sprintf("Invalid compatibility level '%s': it is one of %v", l, levels)}
}

func invalidMode(mode string) error {
	return &apiError{http.StatusUnprocessableEntity, 42204, fmt.Sprintf("Invalid mode '%s': it is one of %v", mode, modes)}
}

func notPermitted(message string) error {
	return &apiError{http.StatusUnprocessableEntity, 42205, message}
}

func otherID(id, want int) error {
	return &apiError{http.StatusUnprocessableEntity, 42207, fmt.Sprintf("The schema is registered with the id %d, the request has %d", id, want)}
}

func invalidRuleSet(reason string) error {
	return &apiError{http.StatusUnprocessableEntity, 42210, "Invalid rule set: " + reason}
}

func referenceExists(message string) error {
	return &apiError{http.StatusUnprocessableEntity, 42206, message}
}

func invalidSubject(subject string) error {
	return &apiError{http.StatusUnprocessableEntity, 42208, fmt.Sprintf("The subject %q is not valid: it must not be empty, longer than 512 bytes, hold control characters or what is not UTF-8, or begin with \":.\": there is only the default context", subject)}
}

func schemaTooLarge(size, limit int) error {
	return &apiError{http.StatusUnprocessableEntity, 42209, fmt.Sprintf("The schema has %d bytes, the limit is %d", size, limit)}
}

func badRequest(status int, format string, args ...any) error {
	return &apiError{status, status, fmt.Sprintf(format, args...)}
}
