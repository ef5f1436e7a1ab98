package server

import (
	"encoding/json"
	"path/filepath"
	"strings"

	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/catalog/sql"
	"github.com/tabletopic/tabletopic/internal/invariant"
)

// checkLocation refuses what is not below the warehouse or another allowed location: this
// server's rights on the store must not become every client's.
func (s *Server) checkLocation(r *request, location string) error {
	trimmed := strings.TrimRight(location, "/")
	scheme, path, _ := strings.Cut(trimmed, ":")
	path = "/" + strings.TrimLeft(path, "/")
	for _, segment := range strings.Split(path, "/")[1:] {
		if segment == ".." || segment == "." || segment == "" && scheme == "file" || strings.ContainsFunc(segment, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return invalid("location %q has an empty, . or .. segment, or a control character", location)
		}
	}
	allowed := invariant.Off("locations-stay-in-warehouse")
	for _, root := range append([]string{s.catalog.Warehouse()}, s.cfg.Locations...) {
		allowed = allowed || sql.Below(trimmed, root) && (scheme != "file" || staysBelow(path, root))
	}
	if !allowed {
		return invalid("location %s is not below the warehouse %s, nor below another location that this server allows", location, s.catalog.Warehouse())
	}
	if _, _, err := s.locator.Resolve(r.Context(), trimmed+"/metadata/x"); err != nil {
		return invalid("%v", err)
	}
	return nil
}

// staysBelow follows the symbolic links of a local path, as far as it exists.
func staysBelow(path, root string) bool {
	_, dir, _ := strings.Cut(root, ":")
	dir = "/" + strings.TrimLeft(dir, "/")
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return true // nothing is there yet
	}
	for ; len(path) > len(dir); path = filepath.Dir(path) {
		if target, err := filepath.EvalSymlinks(path); err == nil {
			return strings.HasPrefix(target, real+"/")
		}
	}
	return true
}

// newLocation is where a new table or view lies: below an allowed location also if the
// client asks for a place, and apart from all others.
func (s *Server) newLocation(r *request, id table.Identifier, wanted string) (string, error) {
	location := strings.TrimRight(wanted, "/")
	if location == "" {
		var err error
		if location, err = s.catalog.NewLocation(r.Context(), id); err != nil {
			return "", err
		}
	}
	return location, s.checkOwnLocation(r, id, location)
}

// checkOwnLocation is checkLocation for the place of a table itself.
func (s *Server) checkOwnLocation(r *request, id table.Identifier, location string) error {
	if err := s.checkLocation(r, location); err != nil {
		return err
	}
	others, err := s.catalog.Overlaps(r.Context(), id, strings.TrimRight(location, "/"))
	if err != nil {
		return err
	}
	if len(others) > 0 && !invariant.Off("locations-apart") {
		return invalid("location %s overlaps that of %s", location, others[0])
	}
	return nil
}

// checkProperties refuses properties of tables, views and namespaces that lead elsewhere.
func (s *Server) checkProperties(r *request, properties map[string]string) error {
	for _, key := range []string{"location", "write.metadata.path", "write.data.path", "write.folder-storage.path", "write.object-storage.path"} {
		if location := properties[key]; location != "" {
			if err := s.checkLocation(r, location); err != nil {
				return err
			}
		}
	}
	return nil
}

// An update is what checkUpdate needs of one, whether for a table or a view.
type update interface{ Action() string }

// checkUpdates refuses updates that would make the server read or write elsewhere.
func checkUpdates[U update](s *Server, r *request, id table.Identifier, updates []U) error {
	for _, u := range updates {
		if err := s.checkUpdate(r, id, u); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) checkUpdate(r *request, id table.Identifier, u update) error {
	switch u.Action() {
	case table.UpdateSetLocation, table.UpdateSetProperties, table.UpdateAddSnapshot:
	default:
		return nil
	}
	var wire struct {
		Location string            `json:"location"`
		Updates  map[string]string `json:"updates"`
		Snapshot struct {
			ManifestList string `json:"manifest-list"`
		} `json:"snapshot"`
	}
	data, err := json.Marshal(u)
	if err == nil {
		err = json.Unmarshal(data, &wire)
	}
	if err != nil {
		return invalid("update %s: %v", u.Action(), err)
	}
	if wire.Location != "" {
		if err := s.checkOwnLocation(r, id, wire.Location); err != nil {
			return err
		}
	}
	if wire.Snapshot.ManifestList != "" {
		if err := s.checkLocation(r, wire.Snapshot.ManifestList); err != nil {
			return err
		}
	}
	return s.checkProperties(r, wire.Updates)
}

// checkMetadata refuses a metadata file of a table that would make the server read, write
// or delete what is not the table's.
func (s *Server) checkMetadata(r *request, id table.Identifier, meta table.Metadata) error {
	if err := s.checkOwnLocation(r, id, meta.Location()); err != nil {
		return err
	}
	if err := s.checkProperties(r, meta.Properties()); err != nil {
		return err
	}
	for _, snapshot := range meta.Snapshots() {
		if snapshot.ManifestList == "" {
			continue
		}
		if err := s.checkLocation(r, snapshot.ManifestList); err != nil {
			return err
		}
	}
	for entry := range meta.PreviousFiles() {
		if !sql.Below(entry.MetadataFile, meta.Location()) {
			return invalid("its metadata log names %s, which is not below its location %s", entry.MetadataFile, meta.Location())
		}
	}
	return nil
}
