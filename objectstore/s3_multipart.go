package objectstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"golang.org/x/sync/errgroup"
)

const (
	// maxParts is the most that S3 takes in one upload.
	maxParts = 10_000
	// partsInFlight bounds the parallel requests of one upload.
	partsInFlight = 4
)

// uploadMark is the metadata of an object that was uploaded in parts by which its writer
// knows it again.
const uploadMark = "tabletopic-upload"

// putMultipart uploads body in parts. The condition of a create is checked when the parts
// are put together. An upload that the store does not know any more has expired, or an
// attempt whose answer was lost has put it together, and then the object's mark is ours. If
// not, and where another create of the key was under way, all starts anew.
func (s *S3) putMultipart(ctx context.Context, op Op, key string, body [][]byte, size int64) error {
	mark := rand.Text()
	for n := 1; ; n++ {
		err := s.upload(ctx, op, key, mark, body, size)
		taken := status(err) == http.StatusPreconditionFailed
		switch {
		case code(err) == "NoSuchUpload" || taken:
			found, lookErr := s.mark(ctx, key)
			switch {
			case lookErr != nil:
				return errors.Join(err, lookErr)
			case found == mark:
				return nil
			case taken:
				return err
			}
		case status(err) != http.StatusConflict:
			return err
		}
		if n >= s.cfg.Attempts {
			return fmt.Errorf("%w: %d uploads: %w", ErrUnavailable, n, err)
		}
		if err := s.wait(ctx, n); err != nil {
			return err
		}
	}
}

// mark returns the mark of an object, "" if there is none.
func (s *S3) mark(ctx context.Context, key string) (mark string, err error) {
	err = s.try(ctx, OpGet, key, func(a *attempt) error {
		out, err := s.client.HeadObject(a.ctx, &s3.HeadObjectInput{Bucket: &s.cfg.Bucket, Key: &key})
		if err == nil {
			mark = out.Metadata[uploadMark]
		}
		return err
	})
	if status(err) == http.StatusNotFound {
		return "", nil
	}
	return mark, err
}

func (s *S3) upload(ctx context.Context, op Op, key, mark string, body [][]byte, size int64) error {
	var id *string
	err := s.try(ctx, OpMultipart, key, func(a *attempt) error {
		out, err := s.client.CreateMultipartUpload(a.ctx, &s3.CreateMultipartUploadInput{
			Bucket: &s.cfg.Bucket, Key: &key, Metadata: map[string]string{uploadMark: mark},
		})
		if err == nil {
			id = out.UploadId
		}
		return err
	})
	if err != nil {
		return err
	}
	parts, err := s.uploadParts(ctx, key, id, body, size)
	if err == nil {
		err = s.try(ctx, OpMultipart, key, func(a *attempt) error {
			_, err := s.client.CompleteMultipartUpload(a.ctx, &s3.CompleteMultipartUploadInput{
				Bucket: &s.cfg.Bucket, Key: &key, UploadId: id,
				MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
				IfNoneMatch:     ifNoneMatch(op),
			})
			return err
		})
	}
	if err != nil {
		s.abort(ctx, key, id)
	}
	return err
}

func (s *S3) uploadParts(ctx context.Context, key string, id *string, body [][]byte, size int64) ([]types.CompletedPart, error) {
	partBytes := max(s.cfg.PartBytes, (size+maxParts-1)/maxParts)
	parts := make([]types.CompletedPart, (size+partBytes-1)/partBytes)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(partsInFlight)
	for i := range parts {
		g.Go(func() error {
			number := aws.Int32(int32(i + 1))
			piece := cut(body, int64(i)*partBytes, partBytes)
			return s.try(ctx, OpMultipart, key, func(a *attempt) error {
				out, err := s.client.UploadPart(a.ctx, &s3.UploadPartInput{
					Bucket: &s.cfg.Bucket, Key: &key, UploadId: id, PartNumber: number,
					Body: a.send(piece), ContentLength: aws.Int64(bodySize(piece)),
				})
				if err == nil {
					parts[i] = types.CompletedPart{PartNumber: number, ETag: out.ETag}
				}
				return err
			})
		})
	}
	return parts, g.Wait()
}

// abort frees the parts of an upload that came to nothing. If that fails too, the
// bucket's lifecycle rule for incomplete uploads is what removes them.
func (s *S3) abort(ctx context.Context, key string, id *string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	_ = s.attempt(ctx, OpMultipart, key, func(a *attempt) error {
		_, err := s.client.AbortMultipartUpload(a.ctx, &s3.AbortMultipartUploadInput{Bucket: &s.cfg.Bucket, Key: &key, UploadId: id})
		return err
	})
}

// cut returns the bytes [off, off+n) of body, or fewer at its end, without copying.
func cut(body [][]byte, off, n int64) [][]byte {
	var piece [][]byte
	for _, p := range body {
		if off >= int64(len(p)) {
			off -= int64(len(p))
			continue
		}
		p = p[off:]
		off = 0
		if int64(len(p)) >= n {
			return append(piece, p[:n])
		}
		piece = append(piece, p)
		n -= int64(len(p))
	}
	return piece
}
