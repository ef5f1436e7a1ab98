package metadata

import (
	"context"
	"database/sql"
	"fmt"
)

const scopeGroup = "group" // of the table config: name is that of a group, whether it exists or not

// AlterGroupConfig sets what is configured of a group, and removes the keys remove.
func (s *Store) AlterGroupConfig(ctx context.Context, group string, set map[string]string, remove []string) error {
	return s.updateDurably(ctx, "alter configuration of group "+group, func(t *tx) error {
		for _, key := range remove {
			if _, err := t.exec(`DELETE FROM config WHERE scope = $1 AND name = $2 AND key = $3`, scopeGroup, group, key); err != nil {
				return err
			}
		}
		for key, value := range set {
			if _, err := t.exec(`INSERT INTO config (scope, name, key, value) VALUES ($1, $2, $3, $4)
				ON CONFLICT (scope, name, key) DO UPDATE SET value = excluded.value`, scopeGroup, group, key, value); err != nil {
				return err
			}
		}
		return t.change(ChangeGroup, group)
	})
}

// GroupConfigs returns what is configured of groups, by their names.
func (s *Store) GroupConfigs(ctx context.Context) (map[string]map[string]string, error) {
	all := map[string]map[string]string{}
	err := eachRow(ctx, s.readers, func(rows *sql.Rows) error {
		var name, key, value string
		if err := rows.Scan(&name, &key, &value); err != nil {
			return err
		}
		if all[name] == nil {
			all[name] = map[string]string{}
		}
		all[name][key] = value
		return nil
	}, `SELECT name, key, value FROM config WHERE scope = $1`, scopeGroup)
	if err != nil {
		return nil, fmt.Errorf("read configurations of groups: %w", err)
	}
	return all, nil
}
