package objectstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go/logging"
	"github.com/tabletopic/tabletopic/internal/invariant"
)

// S3Config says where a bucket is and how patient its client is.
type S3Config struct {
	// Bucket is its name.
	Bucket string
	// Region, from the environment or the AWS configuration files if empty; us-east-1 if
	// they say nothing and there is an Endpoint.
	Region string
	// Endpoint is the http(s) URL of a store that is not AWS.
	Endpoint string
	// PathStyle puts the bucket into the path of a request, not into the name of the host.
	PathStyle bool

	// Credentials, the default chain of AWS if nil.
	Credentials aws.CredentialsProvider
	// HTTPClient shares connections between buckets. NewHTTPClient() if nil.
	HTTPClient *awshttp.BuildableClient

	// StallTimeout gives an attempt up in which no byte has moved for so long. 15 s if zero.
	StallTimeout time.Duration
	// Attempts bounds the tries of one request. 8 if zero.
	Attempts int
	// Backoff is the longest wait before the second attempt; it doubles with each, up to
	// 5 s, and the wait is random below it. 100 ms if zero.
	Backoff time.Duration

	// MultipartBytes is the largest object that is sent in one request. 64 MiB if zero.
	MultipartBytes int64
	// PartBytes is the size of the parts beyond it, at least 5 MiB for AWS. 16 MiB if zero.
	PartBytes int64
}

func (c *S3Config) setDefaults() {
	if c.HTTPClient == nil {
		c.HTTPClient = NewHTTPClient()
	}
	if c.StallTimeout == 0 {
		c.StallTimeout = 15 * time.Second
	}
	if c.Attempts == 0 {
		c.Attempts = 8
	}
	if c.Backoff == 0 {
		c.Backoff = 100 * time.Millisecond
	}
	if c.MultipartBytes == 0 {
		c.MultipartBytes = 64 << 20
	}
	if c.PartBytes == 0 {
		c.PartBytes = 16 << 20
	}
}

// NewHTTPClient returns a client tuned for many large requests to few hosts. It can be
// shared by any number of S3 buckets.
func NewHTTPClient() *awshttp.BuildableClient {
	return awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
		t.MaxIdleConns = 0
		t.MaxIdleConnsPerHost = 256
		t.IdleConnTimeout = 60 * time.Second
		t.WriteBufferSize = 256 << 10
		t.ReadBufferSize = 64 << 10
		t.DisableCompression = true
		// One stream per connection: S3 has no HTTP/2, and others would share one window.
		t.ForceAttemptHTTP2 = false
		t.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	})
}

// S3 is a Bucket of S3, or of a store that speaks its protocol.
//
// PutIfAbsent is a PUT with `If-None-Match: *`. Every request is tried again, with random
// waits, when its failure may be gone by then: no answer, an answer that breaks off, 5xx,
// 429, and 409, by which a conditional PUT says that another one is under way. Bodies are
// signed without their hash over TLS, which hashes already.
type S3 struct {
	client   *s3.Client
	cfg      S3Config
	observer Observer // may be nil
}

// NewS3 returns a client of the bucket. It fetches credentials, but sends nothing to the store.
func NewS3(ctx context.Context, cfg S3Config) (*S3, error) {
	cfg.setDefaults()
	fail := func(err error) (*S3, error) { return nil, fmt.Errorf("open s3://%s: %w", cfg.Bucket, err) }
	loaded, err := awsconfig.LoadDefaultConfig(ctx,
		awsconfig.WithRegion(cfg.Region),
		awsconfig.WithHTTPClient(cfg.HTTPClient),
		awsconfig.WithCredentialsProvider(cfg.Credentials))
	if err != nil {
		return fail(err)
	}
	if loaded.Region == "" {
		if cfg.Endpoint == "" {
			return fail(errors.New("no region: add ?region=… or set AWS_REGION"))
		}
		loaded.Region = "us-east-1"
	}
	cfg.Region = loaded.Region
	if _, err := loaded.Credentials.Retrieve(ctx); err != nil {
		return fail(fmt.Errorf("no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give the machine a role: %w", err))
	}
	client := s3.NewFromConfig(loaded, func(o *s3.Options) {
		o.UsePathStyle = cfg.PathStyle
		o.Retryer = aws.NopRetryer{} // see S3.try
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		o.ContinueHeaderThresholdBytes = -1 // a round trip for each PUT otherwise
		o.DisableLogOutputChecksumValidationSkipped = true
		o.Logger = logging.Nop{} // it would write to stderr of answers that are tried again
		if cfg.Endpoint != "" {
			o.BaseEndpoint = aws.String(cfg.Endpoint)
		}
		if !strings.HasPrefix(cfg.Endpoint, "http://") {
			o.APIOptions = append(o.APIOptions, v4.SwapComputePayloadSHA256ForUnsignedPayloadMiddleware)
		}
	})
	return &S3{client: client, cfg: cfg}, nil
}

// observed returns s with one more observer.
func (s *S3) observed(o Observer) *S3 {
	c := *s
	if s.observer != nil {
		o = observers{s.observer, o}
	}
	c.observer = o
	return &c
}

type observers [2]Observer

func (o observers) ObserveRequest(r Request) {
	o[0].ObserveRequest(r)
	o[1].ObserveRequest(r)
}

// Location is s3://bucket/key.
func (s *S3) Location(key string) string { return "s3://" + s.cfg.Bucket + "/" + key }

// Put implements Bucket.
func (s *S3) Put(ctx context.Context, key string, body ...[]byte) error {
	return s.put(ctx, OpPut, key, body)
}

// PutIfAbsent implements Bucket.
func (s *S3) PutIfAbsent(ctx context.Context, key string, body ...[]byte) error {
	return s.put(ctx, OpPutIfAbsent, key, body)
}

func (s *S3) put(ctx context.Context, op Op, key string, body [][]byte) error {
	if err := CheckKey(key); err != nil {
		return fmt.Errorf("put: %w", err)
	}
	size := bodySize(body)
	var err error
	if size > s.cfg.MultipartBytes {
		err = s.putMultipart(ctx, op, key, body, size)
	} else {
		err = s.try(ctx, op, key, func(a *attempt) error {
			_, err := s.client.PutObject(a.ctx, &s3.PutObjectInput{
				Bucket: &s.cfg.Bucket, Key: &key,
				Body: a.send(body), ContentLength: &size,
				IfNoneMatch: ifNoneMatch(op),
			})
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("put %s: %w", key, s.explain(err))
	}
	return nil
}

// ifNoneMatch is the condition of a create.
func ifNoneMatch(op Op) *string {
	if op == OpPutIfAbsent && !invariant.Off("s3-if-none-match") {
		return aws.String("*")
	}
	return nil
}

// Get implements Bucket.
func (s *S3) Get(ctx context.Context, key string, off, n int64) ([]byte, error) {
	if err := CheckKey(key); err != nil {
		return nil, fmt.Errorf("get: %w", err)
	}
	var data []byte
	err := s.try(ctx, OpGet, key, func(a *attempt) (err error) {
		data, err = s.get(a, key, off, n)
		return err
	})
	if status(err) == http.StatusRequestedRangeNotSatisfiable {
		return []byte{}, nil // off lies behind the end, or the object is empty
	}
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", key, s.explain(err))
	}
	if n >= 0 && off >= 0 && int64(len(data)) > n {
		data = data[:n] // of the one byte asked for when n is 0
	}
	return data, nil
}

func (s *S3) get(a *attempt, key string, off, n int64) ([]byte, error) {
	body, size, err := s.open(a, key, off, n)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	data := make([]byte, size)
	return data, readBody(a, body, data)
}

// getParts is GetParts.
func (s *S3) getParts(ctx context.Context, key string, parts []Part) error {
	from, to := rangeOf(parts)
	err := s.try(ctx, OpGet, key, func(a *attempt) error {
		body, size, err := s.open(a, key, from, to-from)
		if err != nil {
			return err
		}
		defer body.Close()
		if size < to-from {
			return permanent(ErrShort)
		}
		at := from
		for _, p := range parts {
			if _, err := io.CopyN(io.Discard, a.receive(body), p.Off-at); err != nil {
				return fmt.Errorf("answer broke off after %d of %d bytes: %w", at-from, to-from, err)
			}
			if err := readBody(a, body, p.Data); err != nil {
				return err
			}
			at = p.Off + int64(p.Size)
		}
		return nil
	})
	if status(err) == http.StatusRequestedRangeNotSatisfiable {
		return ErrShort
	}
	if errors.Is(err, ErrShort) {
		return err
	}
	if err != nil {
		return s.explain(err)
	}
	return nil
}

// readBody fills buf.
func readBody(a *attempt, body io.Reader, buf []byte) error {
	if k, err := io.ReadFull(a.receive(body), buf); err != nil {
		return fmt.Errorf("answer broke off after %d of %d bytes: %w", k, len(buf), err)
	}
	return nil
}

// open begins to get a part of an object, of so many bytes.
func (s *S3) open(a *attempt, key string, off, n int64) (body io.ReadCloser, size int64, err error) {
	var span *string
	switch {
	case off < 0:
		span = aws.String("bytes=" + strconv.FormatInt(off, 10))
	case n >= 0:
		span = aws.String(fmt.Sprintf("bytes=%d-%d", off, off+max(n, 1)-1))
	case off > 0:
		span = aws.String(fmt.Sprintf("bytes=%d-", off))
	}
	out, err := s.client.GetObject(a.ctx, &s3.GetObjectInput{Bucket: &s.cfg.Bucket, Key: &key, Range: span})
	if err != nil {
		return nil, 0, err
	}
	size = aws.ToInt64(out.ContentLength)
	if span != nil && out.ContentRange == nil && size > 0 {
		out.Body.Close()
		return nil, 0, permanent(errors.New("the store ignores ranges of GET requests"))
	}
	return out.Body, size, nil
}

// List implements Bucket.
func (s *S3) List(ctx context.Context, prefix, after string) ([]Object, error) {
	var page []Object
	for {
		var out *s3.ListObjectsV2Output
		err := s.try(ctx, OpList, prefix, func(a *attempt) (err error) {
			in := &s3.ListObjectsV2Input{Bucket: &s.cfg.Bucket, MaxKeys: aws.Int32(PageKeys)}
			if prefix != "" {
				in.Prefix = &prefix
			}
			if after != "" {
				in.StartAfter = &after
			}
			out, err = s.client.ListObjectsV2(a.ctx, in)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", prefix, s.explain(err))
		}
		for _, o := range out.Contents {
			key := aws.ToString(o.Key)
			if CheckKey(key) == nil && key > after { // others' folder marks end in a slash
				page = append(page, Object{Key: key, Size: aws.ToInt64(o.Size), Modified: aws.ToTime(o.LastModified)})
			}
		}
		if len(page) > 0 || len(out.Contents) == 0 {
			return page, nil
		}
		after = aws.ToString(out.Contents[len(out.Contents)-1].Key)
	}
}

// Delete implements Bucket. A thousand keys make one request.
func (s *S3) Delete(ctx context.Context, keys ...string) error {
	if err := checkDelete(ctx, keys); err != nil {
		return err
	}
	failed := &DeleteError{}
	for batch := range slices.Chunk(keys, PageKeys) {
		left := batch
		err := s.try(ctx, OpDelete, batch[0], func(a *attempt) (err error) {
			left, err = s.delete(a, left)
			return err
		})
		for _, key := range left {
			failed.add(key, s.explain(err))
		}
	}
	if len(failed.Keys) > 0 {
		return failed
	}
	return nil
}

// delete returns those of keys that may still be there, with an error if there are any. The
// answer need not name those that are gone: what it does not complain of is.
func (s *S3) delete(a *attempt, keys []string) (left []string, err error) {
	in := &s3.DeleteObjectsInput{Bucket: &s.cfg.Bucket, Delete: &types.Delete{Quiet: aws.Bool(true)}}
	for _, key := range keys {
		in.Delete.Objects = append(in.Delete.Objects, types.ObjectIdentifier{Key: aws.String(key)})
	}
	out, err := s.client.DeleteObjects(a.ctx, in)
	if err != nil {
		return keys, err
	}
	for _, e := range out.Errors {
		if aws.ToString(e.Code) == "NoSuchKey" {
			continue
		}
		err = keyError{code: aws.ToString(e.Code), message: aws.ToString(e.Message)}
		if !slices.Contains(keys, aws.ToString(e.Key)) {
			return keys, err // it does not say whose error it is
		}
		left = append(left, aws.ToString(e.Key))
	}
	return left, err
}

// keyError is the failure of one key in a request that succeeded.
type keyError struct{ code, message string }

func (e keyError) Error() string { return e.code + ": " + e.message }
