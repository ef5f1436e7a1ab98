package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/named"
	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/metadata"
)

// CatalogStatus is a catalog that topics can name.
type CatalogStatus struct {
	named.Info
	Topics []string `json:"topics"` // that name it
}

// CatalogSpec is what PUT /api/catalogs/{name} takes.
type CatalogSpec struct {
	Kind     string            `json:"kind"`
	Settings map[string]string `json:"settings"`
}

// openCatalogs makes the registered catalogs available to topics.
func (n *Node) openCatalogs(meta *metadata.Store) error {
	key, err := named.ParseKey(n.cfg.SecretsKey)
	if err == nil && n.cfg.SecretsKeyFile != "" {
		key, err = named.ReadKey(n.cfg.SecretsKeyFile)
	}
	if err != nil {
		return err
	}
	n.catalogs = named.New(meta, n.locator, key)
	n.onClose("catalogs", func(context.Context) error { return n.catalogs.Close() })
	return nil
}

// lookupPatience is how long the metadata database may take to tell whether a catalog exists.
const lookupPatience = 10 * time.Second

// catalog implements coordinator.Catalogs.
func (n *Node) catalog(name string) (catalog.Catalog, error) {
	switch {
	case name == "" && n.external != nil:
		return n.external, nil
	case name == "":
		return n.builtin, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookupPatience)
	defer cancel()
	return n.catalogs.Get(ctx, name)
}

// locatorOf implements worker.Locators and coordinator.Locators.
func (n *Node) locatorOf(name string) catalog.Locator {
	if name == "" {
		return n.locator
	}
	return n.catalogs.Locator(name)
}

// borrowInterval is how often tables are looked through for those whose files are reached
// with credentials of their catalog.
const borrowInterval = 10 * time.Second

// borrow takes credentials for the files of all tables, since any node may write them, from
// the catalogs that vend some. The coordinator's node has them from loading the table.
func (n *Node) borrow(ctx context.Context) {
	tick := time.NewTicker(borrowInterval)
	defer tick.Stop()
	for {
		lenders := map[string]named.Lender{} // by catalog
		for _, t := range n.set.Topics() {
			cfg, err := n.set.TopicConfig(t)
			if err != nil || !cfg.Table.Enable {
				continue
			}
			lender, asked := lenders[cfg.Table.Catalog]
			if !asked {
				lender = n.lender(ctx, cfg.Table.Catalog)
				lenders[cfg.Table.Catalog] = lender
			}
			id, err := coordinator.Identifier(cfg.Table.Namespace, cfg.Table.Name, t.Name)
			if err != nil || lender == nil {
				continue
			}
			within, cancel := context.WithTimeout(ctx, testPatience)
			if err := lender.Borrow(within, id); err != nil && !errors.Is(err, catalog.ErrNoTable) && ctx.Err() == nil {
				n.log.Debug("no credentials from the catalog", "topic", t.Name, "error", err)
			}
			cancel()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// lender returns what vends credentials for a catalog's tables, nil if nothing does, or not now.
func (n *Node) lender(ctx context.Context, name string) named.Lender {
	cat, err := n.catalog(name)
	if err != nil {
		return nil // its topics say so
	}
	if h, ok := cat.(*named.Handle); ok {
		l, _ := h.Lender(ctx) // its topics say why
		return l
	}
	l, _ := cat.(named.Lender)
	return l
}

// testPatience is how long a catalog may take to be tried.
const testPatience = 30 * time.Second

// maxSpec is the largest body of a request that adds a catalog, in bytes.
const maxSpec = 1 << 20

// handleCatalogs adds the administration of catalogs. Errors are {"message": …}.
//
//	GET    /api/catalogs               {"catalogs": [CatalogStatus, …]}
//	PUT    /api/catalogs/{name}        CatalogSpec; tries the catalog first
//	POST   /api/catalogs/{name}/test   tries it
//	DELETE /api/catalogs/{name}        409 while topics name it
func (n *Node) handleCatalogs(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/catalogs", func(w http.ResponseWriter, r *http.Request) {
		list, err := n.catalogs.List(r.Context())
		if err != nil {
			answer(w, http.StatusInternalServerError, message(err))
			return
		}
		out := []CatalogStatus{}
		for _, info := range list {
			out = append(out, CatalogStatus{info, n.topicsOf(info.Name)})
		}
		answer(w, http.StatusOK, map[string]any{"catalogs": out})
	})
	mux.HandleFunc("PUT /api/catalogs/{name}", func(w http.ResponseWriter, r *http.Request) {
		var spec CatalogSpec
		decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxSpec))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&spec); err != nil {
			answer(w, http.StatusBadRequest, message(fmt.Errorf("body: {\"kind\": …, \"settings\": {…}} is wanted: %w", err)))
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), testPatience)
		defer cancel()
		n.answerCatalog(w, n.catalogs.Add(ctx, r.PathValue("name"), spec.Kind, spec.Settings))
	})
	mux.HandleFunc("POST /api/catalogs/{name}/test", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), testPatience)
		defer cancel()
		n.answerCatalog(w, n.catalogs.Test(ctx, r.PathValue("name")))
	})
	mux.HandleFunc("DELETE /api/catalogs/{name}", func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("name")
		if topics := n.topicsOf(name); len(topics) > 0 {
			answer(w, http.StatusConflict, message(fmt.Errorf("catalog %s holds the tables of %s: give those another table.topic.catalog first", name, strings.Join(topics, ", "))))
			return
		}
		n.answerCatalog(w, n.catalogs.Remove(r.Context(), name))
	})
}

func (n *Node) answerCatalog(w http.ResponseWriter, err error) {
	switch {
	case err == nil:
		answer(w, http.StatusOK, struct{}{})
	case errors.Is(err, metadata.ErrCatalogNotExist):
		answer(w, http.StatusNotFound, message(err))
	default:
		answer(w, http.StatusUnprocessableEntity, message(err))
	}
}

// topicsOf returns the topics that name a catalog.
func (n *Node) topicsOf(name string) []string {
	topics := []string{}
	for _, t := range n.set.Topics() {
		if cfg, err := n.set.TopicConfig(t); err == nil && cfg.Table.Catalog == name {
			topics = append(topics, t.Name)
		}
	}
	return topics
}
