package main

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/tabletopic/tabletopic/node"
	"github.com/tabletopic/tabletopic/security"
)

func newUser() *cobra.Command {
	cmd := parent("user", "Manage users and their passwords")
	s := serverFlags(cmd)
	cmd.AddCommand(newUserSet(s), newUserRemove(s), newUserList(s))
	return cmd
}

var scramMechanisms = []kadm.ScramMechanism{kadm.ScramSha256, kadm.ScramSha512}

func newUserSet(s *server) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set NAME PASSWORD-FILE",
		Short: "Make a user, or give it another password",
		Long: `Set gives a user the password that PASSWORD-FILE holds, for SCRAM-SHA-256, SCRAM-SHA-512 and PLAIN. It is salted here: the
server learns no password. A user may do nothing until an ACL allows it; see 'tabletopic acl'.`,
		Args: usage(cobra.ExactArgs(2)),
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		password, err := node.ReadPassword(args[1])
		if err != nil {
			return err
		}
		var set []kadm.UpsertSCRAM
		for _, m := range scramMechanisms {
			set = append(set, kadm.UpsertSCRAM{User: args[0], Mechanism: m, Iterations: security.DefaultIterations, Password: password})
		}
		return alterUsers(cmd, s, nil, set, func() error {
			return out.say(cmd.OutOrStdout(), map[string]string{"user": args[0]}, "user %s has the password of %s", args[0], args[1])
		})
	}
	return cmd
}

func newUserRemove(s *server) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a user; its connections last until they end",
		Args:  usage(cobra.ExactArgs(1)),
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		admin, err := s.admin()
		if err != nil {
			return err
		}
		defer admin.Close()
		users, err := admin.DescribeUserSCRAMs(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if err := users.Error(); err != nil {
			return err
		}
		var remove []kadm.DeleteSCRAM
		for _, info := range users[args[0]].CredInfos {
			remove = append(remove, kadm.DeleteSCRAM{User: args[0], Mechanism: info.Mechanism})
		}
		return alterUsers(cmd, s, remove, nil, func() error {
			return out.say(cmd.OutOrStdout(), map[string]string{"user": args[0]}, "user %s removed", args[0])
		})
	}
	return cmd
}

func alterUsers(cmd *cobra.Command, s *server, remove []kadm.DeleteSCRAM, set []kadm.UpsertSCRAM, say func() error) error {
	admin, err := s.admin()
	if err != nil {
		return err
	}
	defer admin.Close()
	altered, err := admin.AlterUserSCRAMs(cmd.Context(), remove, set)
	if err != nil {
		return err
	}
	if err := altered.Error(); err != nil {
		return err
	}
	return say()
}

func newUserList(s *server) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List users", Args: usage(cobra.NoArgs)}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		admin, err := s.admin()
		if err != nil {
			return err
		}
		defer admin.Close()
		users, err := admin.DescribeUserSCRAMs(cmd.Context())
		if err != nil {
			return err
		}
		if err := users.Error(); err != nil {
			return err
		}
		type row struct {
			Name       string   `json:"name"`
			Mechanisms []string `json:"mechanisms"`
		}
		list, cells := []row{}, [][]string{}
		for _, u := range users.Sorted() {
			r := row{Name: u.User}
			for _, info := range u.CredInfos {
				r.Mechanisms = append(r.Mechanisms, info.Mechanism.String())
			}
			list, cells = append(list, r), append(cells, []string{r.Name, strings.Join(r.Mechanisms, ", ")})
		}
		return out.print(cmd.OutOrStdout(), list, []string{"NAME", "MECHANISMS"}, cells)
	}
	return cmd
}
