package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/tabletopic/tabletopic/broker/group"
	"github.com/tabletopic/tabletopic/internal/shards"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/partition"
)

// refuse is a Kafka error with what a user can do about it.
func refuse(code *kerr.Error, format string, args ...any) error {
	return &refusal{code: code, text: fmt.Sprintf(format, args...)}
}

type refusal struct {
	code    *kerr.Error
	text    string
	records []partition.RecordError // of a batch that is refused because of some
}

func (e *refusal) Error() string { return e.text }
func (e *refusal) Unwrap() error { return e.code }

// codeOf returns the Kafka code that an API chose for err. Where it chose none, a wait
// that ended is REQUEST_TIMED_OUT and the rest UNKNOWN_SERVER_ERROR.
func codeOf(err error) int16 {
	var ke *kerr.Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &ke):
		return ke.Code
	case errors.Is(err, metadata.ErrInvalidText):
		return kerr.InvalidRequest.Code
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return kerr.RequestTimedOut.Code
	}
	return kerr.UnknownServerError.Code
}

// codeAndText returns the code of err and its text for a response that carries one.
func codeAndText(err error) (int16, *string) {
	if err == nil {
		return 0, nil
	}
	return codeOf(err), textOf(err)
}

// textOf is the text of err for people: of a code alone what Kafka says of it, without the name of the code, of which
// tools make an exception.
func textOf(err error) *string {
	text := err.Error()
	if ke, ok := err.(*kerr.Error); ok {
		text = ke.Description
	}
	return &text
}

// txnCode is the code of a request to a transaction coordinator: why it refused the producer, or
// that it did not answer, after which clients look for it again.
func txnCode(refused *kerr.Error, err error) int16 {
	switch {
	case errors.Is(err, shards.ErrNotCoordinator):
		return kerr.NotCoordinator.Code
	case err != nil:
		return codeOf(err)
	case refused != nil:
		return refused.Code
	}
	return 0
}

// groupCode is the code of a group request that its coordinator did not answer. Clients
// look for the coordinator again and repeat.
func groupCode(err error) int16 {
	if errors.Is(err, shards.ErrNotCoordinator) {
		return kerr.NotCoordinator.Code
	}
	if errors.Is(err, group.ErrNoRoom) {
		return kerr.PolicyViolation.Code
	}
	return codeOf(err)
}
