// Package awsconfig is how catalogs of AWS are reached: region, endpoint, credentials, role.
package awsconfig

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/sts"
)

// Config says how. All of it may be empty.
type Config struct {
	// Region, from the environment or the AWS configuration files if empty.
	Region string
	// Endpoint is the http(s) URL of a service that is not that of AWS.
	Endpoint string
	// AccessKeyID, SecretAccessKey and SessionToken are a key, the default chain of AWS if empty.
	AccessKeyID, SecretAccessKey, SessionToken string
	// Role is the ARN of a role to take on with those credentials.
	Role string
	// ExternalID goes with Role, if the role's trust asks for one.
	ExternalID string
	// STSEndpoint is where the role is asked for. That of AWS if empty.
	STSEndpoint string
}

// Load completes c. It asks nobody but the machine's own metadata service, and that only
// where the environment says nothing.
func Load(ctx context.Context, c Config) (aws.Config, error) {
	if (c.AccessKeyID == "") != (c.SecretAccessKey == "") {
		return aws.Config{}, errors.New("an access key needs both its id and its secret")
	}
	options := []func(*config.LoadOptions) error{
		config.WithRegion(c.Region),
		config.WithHTTPClient(awshttp.NewBuildableClient()),
	}
	if c.AccessKeyID != "" {
		options = append(options, config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider(c.AccessKeyID, c.SecretAccessKey, c.SessionToken)))
	}
	loaded, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return aws.Config{}, fmt.Errorf("AWS configuration: %w", err)
	}
	if loaded.Region == "" {
		return aws.Config{}, errors.New("AWS configuration: no region: name one, or set AWS_REGION")
	}
	if c.Role != "" {
		client := sts.NewFromConfig(loaded, func(o *sts.Options) {
			if c.STSEndpoint != "" {
				o.BaseEndpoint = &c.STSEndpoint
			}
		})
		loaded.Credentials = aws.NewCredentialsCache(stscreds.NewAssumeRoleProvider(client, c.Role, func(o *stscreds.AssumeRoleOptions) {
			o.RoleSessionName = "tabletopic"
			if c.ExternalID != "" {
				o.ExternalID = &c.ExternalID
			}
		}))
	}
	if c.Endpoint != "" {
		loaded.BaseEndpoint = &c.Endpoint
	}
	return loaded, nil
}
