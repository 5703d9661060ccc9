package object

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// fault translates an error of the client. It returns nil without an error, the error of the context if the context has ended, and an
// error that wraps ErrMissing if the object is not there. Everything else is a Fault.
func (s *S3) fault(verb string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: %w", verb, err)
	}

	response := minio.ToErrorResponse(err)
	if response.Code == "NoSuchKey" || response.Code == "InvalidRange" || response.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		return fmt.Errorf("%s: %w", verb, ErrMissing)
	}
	reason, lasting := s.explain(err, response)
	return &Fault{Reason: reason, Lasting: lasting, Err: fmt.Errorf("%s: %w", verb, err)}
}

// explain describes a failure and what to change.
func (s *S3) explain(err error, response minio.ErrorResponse) (reason string, lasting bool) {
	switch response.Code {
	case "NoSuchBucket":
		return fmt.Sprintf("bucket %q does not exist at %s: create it, or correct its name", s.bucket, s.endpoint), true
	case "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken", "TokenRefreshRequired", "InvalidTokenId":
		return fmt.Sprintf("the credentials are wrong or have expired (%s): correct the access key and the secret key", response.Code), true
	case "RequestTimeTooSkewed":
		return "this host's clock differs too much from the store's: synchronize both by NTP", true
	case "AccessDenied", "AllAccessDisabled", "AccountProblem":
		return fmt.Sprintf("the credentials have no access to bucket %q: allow s3:PutObject, s3:GetObject, s3:DeleteObject "+
			"and s3:ListBucket", s.bucket), true
	case "PermanentRedirect", "AuthorizationHeaderMalformed", "TemporaryRedirect":
		return "the bucket is in another region: correct the region and the endpoint", true
	case "NotImplemented":
		return "the store lacks a function that the tier needs, such as conditional writes: use another store", true
	case "SlowDown", "SlowDownRead", "SlowDownWrite", "Throttling", "RequestLimitExceeded":
		return "the store limits the rate of requests: raise its limit, or store fewer blocks", false
	}

	var connection *net.OpError
	var unknown *net.DNSError
	switch {
	case errors.Is(err, errTooLong):
		return fmt.Sprintf("%s sends more than an S3 store does: correct the endpoint", s.endpoint), true
	case errors.Is(err, errNoKeys):
		return "there are no credentials: set accessKey and secretKey, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role", true
	case isCertificate(err):
		return fmt.Sprintf("the certificate of %s is not trusted: give the CA of the store", s.endpoint), true
	case errors.As(err, &unknown):
		return fmt.Sprintf("the name of %s cannot be resolved: correct the endpoint", s.endpoint), true
	case errors.As(err, &connection) && connection.Op == "dial":
		return fmt.Sprintf("%s cannot be reached: start the store, or correct the endpoint", s.endpoint), true
	case errors.As(err, &connection) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF):
		return fmt.Sprintf("the connection to %s broke", s.endpoint), false
	}
	return fmt.Sprintf("%s answers with status %d %s", s.endpoint, response.StatusCode, response.Code), false
}

// errNoKeys is the error if neither the configuration nor the environment nor the instance has credentials.
var errNoKeys = errors.New("no credentials")

// heldKeys gives the client credentials that are fetched before each request needs them. The client itself would fetch them under a
// lock that ignores deadlines.
type heldKeys struct {
	source *credentials.Credentials
	client *http.Client
	turn   chan struct{} // has room for the one call that fetches
	value  atomic.Pointer[credentials.Value]
	taken  atomic.Pointer[credentials.Value] // the value that the client uses
}

func newHeldKeys(cfg S3Config, client *http.Client) *heldKeys {
	k := &heldKeys{client: client, turn: make(chan struct{}, 1)}
	if cfg.AccessKey != "" {
		k.source = credentials.NewStaticV4(cfg.AccessKey, cfg.SecretKey, "")
	} else {
		k.source = credentials.NewChainCredentials([]credentials.Provider{&credentials.EnvAWS{}, &credentials.IAM{Client: client}})
	}
	return k
}

// refresh fetches the credentials if they have expired. Others wait meanwhile, until their ctx ends.
func (k *heldKeys) refresh(ctx context.Context) error {
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if k.value.Load() != nil && !k.source.IsExpired() {
		return nil
	}

	v, err := k.source.GetWithContext(&credentials.CredContext{Client: k.client, Context: ctx})
	if err != nil {
		return err
	}
	if v.SignerType.IsAnonymous() {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return errNoKeys
	}
	k.value.Store(&v)
	return nil
}

// RetrieveWithCredContext implements [credentials.Provider].
func (k *heldKeys) RetrieveWithCredContext(*credentials.CredContext) (credentials.Value, error) {
	return k.Retrieve()
}

// Retrieve implements [credentials.Provider].
func (k *heldKeys) Retrieve() (credentials.Value, error) {
	v := k.value.Load()
	if v == nil {
		return credentials.Value{}, errNoKeys
	}
	k.taken.Store(v)
	return *v, nil
}

// IsExpired implements [credentials.Provider].
func (k *heldKeys) IsExpired() bool { return k.taken.Load() != k.value.Load() }

func isCertificate(err error) bool {
	var invalid *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	return errors.As(err, &invalid) || errors.As(err, &record)
}
