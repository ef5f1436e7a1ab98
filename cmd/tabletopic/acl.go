package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/security"
)

func newACL() *cobra.Command {
	cmd := parent("acl", "Say who may do what")
	s := serverFlags(cmd)
	cmd.AddCommand(newACLAdd(s), newACLRemove(s), newACLList(s))
	return cmd
}

const aclHelp = `PRINCIPAL is User:NAME, or User:* for everybody. OPERATION is read, write, create, delete, alter, describe,
describe_configs, alter_configs, idempotent_write, cluster_action or all. TYPE is topic, group, transactional_id, subject (of the
schema registry), table (of the built-in Iceberg catalog, as namespace.table) or cluster, which has no NAME. A NAME that ends in * is a prefix; * alone is every name.`

// aclArgs are PRINCIPAL OPERATION TYPE [NAME] with the flags of one ACL.
func aclArgs(args []string, deny bool, host string) (c kmsg.CreateACLsRequestCreation, err error) {
	c = kmsg.NewCreateACLsRequestCreation()
	c.Principal, c.Host, c.PermissionType, c.ResourcePatternType = args[0], host, kmsg.ACLPermissionTypeAllow, kmsg.ACLResourcePatternTypeLiteral
	if deny {
		c.PermissionType = kmsg.ACLPermissionTypeDeny
	}
	if c.Operation, err = kmsg.ParseACLOperation(args[1]); err != nil {
		return c, usageError{fmt.Errorf("operation %q: %w", args[1], err)}
	}
	if c.ResourceType, err = resourceType(args[2]); err != nil {
		return c, err
	}
	switch cluster := c.ResourceType == kmsg.ACLResourceTypeCluster; {
	case cluster && len(args) == 4, !cluster && len(args) == 3:
		return c, usageError{errors.New("every type but cluster needs a NAME")}
	case cluster:
		c.ResourceName = security.ClusterName
	default:
		c.ResourceName = args[3]
		if prefix, ok := strings.CutSuffix(args[3], "*"); ok && prefix != "" {
			c.ResourceName, c.ResourcePatternType = prefix, kmsg.ACLResourcePatternTypePrefixed
		}
	}
	return c, nil
}

func resourceType(name string) (kmsg.ACLResourceType, error) {
	for _, t := range []kmsg.ACLResourceType{security.ResourceSubject, security.ResourceTable} {
		if strings.EqualFold(name, security.TypeName(t)) {
			return t, nil
		}
	}
	t, err := kmsg.ParseACLResourceType(name)
	if err != nil {
		return t, usageError{fmt.Errorf("resource type %q: want topic, group, transactional_id, subject, table or cluster", name)}
	}
	return t, nil
}

// aclRow is an ACL as it is printed.
type aclRow struct {
	Principal  string `json:"principal"`
	Permission string `json:"permission"`
	Operation  string `json:"operation"`
	Type       string `json:"type"`
	Name       string `json:"name"`
	Host       string `json:"host"`
}

func (r aclRow) cells() []string {
	return []string{r.Principal, r.Permission, r.Operation, r.Type, r.Name, r.Host}
}

func newACLRow(principal, host string, op kmsg.ACLOperation, permission kmsg.ACLPermissionType, typ kmsg.ACLResourceType, name string, pattern kmsg.ACLResourcePatternType) aclRow {
	if pattern == kmsg.ACLResourcePatternTypePrefixed {
		name += "*"
	}
	lower := strings.ToLower
	return aclRow{principal, lower(permission.String()), lower(op.String()), lower(security.TypeName(typ)), name, host}
}

func newACLAdd(s *server) *cobra.Command {
	var deny bool
	var host string
	cmd := &cobra.Command{
		Use:   "add PRINCIPAL OPERATION TYPE [NAME]",
		Short: "Allow something, or deny it",
		Long:  aclHelp,
		Example: `  tabletopic acl add User:alice write topic 'click*'
  tabletopic acl add User:alice read subject clicks-value
  tabletopic acl add User:mallory all topic '*' --deny`,
		Args: usage(cobra.RangeArgs(3, 4)),
	}
	cmd.Flags().BoolVar(&deny, "deny", false, "deny it, whatever else is allowed")
	cmd.Flags().StringVar(&host, "host", "*", "the `ADDRESS` that it is about")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := aclArgs(args, deny, host)
		if err != nil {
			return err
		}
		cl, err := s.kafka()
		if err != nil {
			return err
		}
		defer cl.Close()
		req := kmsg.NewPtrCreateACLsRequest()
		req.Creations = append(req.Creations, c)
		resp, err := req.RequestWith(cmd.Context(), cl)
		if err != nil {
			return err
		}
		for _, r := range resp.Results {
			if err := securityError(r.ErrorCode, r.ErrorMessage); err != nil {
				return err
			}
		}
		row := newACLRow(c.Principal, c.Host, c.Operation, c.PermissionType, c.ResourceType, c.ResourceName, c.ResourcePatternType)
		return out.say(cmd.OutOrStdout(), row, "%s", strings.Join(row.cells(), " "))
	}
	return cmd
}

func newACLRemove(s *server) *cobra.Command {
	var deny bool
	var host string
	cmd := &cobra.Command{
		Use:   "remove PRINCIPAL OPERATION TYPE [NAME]",
		Short: "Remove what add has added with the same words",
		Long:  aclHelp,
		Args:  usage(cobra.RangeArgs(3, 4)),
	}
	cmd.Flags().BoolVar(&deny, "deny", false, "the one that denies")
	cmd.Flags().StringVar(&host, "host", "*", "the `ADDRESS` that it is about")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := aclArgs(args, deny, host)
		if err != nil {
			return err
		}
		cl, err := s.kafka()
		if err != nil {
			return err
		}
		defer cl.Close()
		req := kmsg.NewPtrDeleteACLsRequest()
		f := kmsg.NewDeleteACLsRequestFilter()
		f.ResourceType, f.ResourceName, f.ResourcePatternType = c.ResourceType, &c.ResourceName, c.ResourcePatternType
		f.Principal, f.Host, f.Operation, f.PermissionType = &c.Principal, &c.Host, c.Operation, c.PermissionType
		req.Filters = append(req.Filters, f)
		resp, err := req.RequestWith(cmd.Context(), cl)
		if err != nil {
			return err
		}
		n := 0
		for _, r := range resp.Results {
			if err := securityError(r.ErrorCode, r.ErrorMessage); err != nil {
				return err
			}
			n += len(r.MatchingACLs)
		}
		if n == 0 {
			return errors.New("there is no such ACL: 'tabletopic acl list' shows those there are")
		}
		return out.say(cmd.OutOrStdout(), map[string]int{"removed": n}, "removed")
	}
	return cmd
}

func newACLList(s *server) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List who may do what", Args: usage(cobra.NoArgs)}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		rows, err := s.acls(cmd.Context())
		if err != nil {
			return err
		}
		cells := [][]string{}
		for _, r := range rows {
			cells = append(cells, r.cells())
		}
		return out.print(cmd.OutOrStdout(), rows, []string{"PRINCIPAL", "PERMISSION", "OPERATION", "TYPE", "NAME", "HOST"}, cells)
	}
	return cmd
}

// acls asks for those of Kafka's types, and for ours, which are only shown by number.
func (s *server) acls(ctx context.Context) ([]aclRow, error) {
	cl, err := s.kafka()
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	rows := []aclRow{}
	for _, typ := range []kmsg.ACLResourceType{kmsg.ACLResourceTypeAny, security.ResourceSubject, security.ResourceTable} {
		req := kmsg.NewPtrDescribeACLsRequest()
		req.ResourceType, req.ResourcePatternType = typ, kmsg.ACLResourcePatternTypeAny
		req.Operation, req.PermissionType = kmsg.ACLOperationAny, kmsg.ACLPermissionTypeAny
		resp, err := req.RequestWith(ctx, cl)
		if err != nil {
			return nil, err
		}
		if err := securityError(resp.ErrorCode, resp.ErrorMessage); err != nil {
			return nil, err
		}
		for _, res := range resp.Resources {
			for _, a := range res.ACLs {
				rows = append(rows, newACLRow(a.Principal, a.Host, a.Operation, a.PermissionType, res.ResourceType, res.ResourceName, res.ResourcePatternType))
			}
		}
	}
	return rows, nil
}

// securityError is the error of an answer: the server's explanation if it gave one.
func securityError(code int16, message *string) error {
	err := kerr.ErrorForCode(code)
	if err != nil && message != nil && *message != "" {
		return errors.New(*message)
	}
	return err
}
