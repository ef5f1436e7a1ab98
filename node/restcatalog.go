package node

import (
	"context"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/tabletopic/tabletopic/catalog/awsconfig"
	"github.com/tabletopic/tabletopic/catalog/server"
	"github.com/tabletopic/tabletopic/objectstore"
)

// openRESTCatalog reads the settings of the built-in catalog's REST server.
func (n *Node) openRESTCatalog(ctx context.Context) error {
	n.restCatalog = server.Config{Defaults: n.engineDefaults(), Metrics: n.metrics}
	for location := range strings.SplitSeq(n.cfg.RESTLocations, ",") {
		if location = strings.TrimRight(strings.TrimSpace(location), "/"); location != "" {
			n.restCatalog.Locations = append(n.restCatalog.Locations, location)
		}
	}
	for _, location := range n.restCatalog.Locations {
		if _, _, err := n.locator.Resolve(ctx, location+"/x"); err != nil {
			return fmt.Errorf("rest-catalog-locations: %w", err)
		}
	}
	if n.cfg.RESTClients != "" {
		clients, err := server.OpenClients(n.cfg.RESTClients)
		if err != nil {
			return fmt.Errorf("rest-catalog-clients: %w", err)
		}
		n.restCatalog.Clients = clients
	}
	if n.cfg.RESTCredentials == "none" {
		return nil
	}
	s3, _, err := objectstore.ParseS3URL(n.cfg.Warehouse)
	if err != nil {
		return err
	}
	aws, err := awsconfig.Load(ctx, awsconfig.Config{Region: s3.Region})
	if err != nil {
		return fmt.Errorf("rest-catalog-credentials: %w", err)
	}
	if n.cfg.RESTCredentials == "own" {
		n.restCatalog.Credentials = server.OwnCredentials(aws.Credentials)
		return nil
	}
	n.restCatalog.Credentials = server.RoleCredentials(sts.NewFromConfig(aws), server.Role{ARN: n.cfg.RESTCredentials})
	return nil
}
