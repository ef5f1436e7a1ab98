package node

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tabletopic/tabletopic/catalog/server"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/schemaregistry"
)

// serveHTTP serves everything that is not Kafka on one port.
func (n *Node) serveHTTP(registry *schemaregistry.Registry) error {
	mux := http.NewServeMux()
	mux.Handle("/", registry.Handler())
	specs, err := n.cfg.listenerSpecs()
	if err != nil {
		return err
	}
	required := n.cfg.httpAuthenticates(specs)
	if required {
		n.restCatalog.Authenticated = func(r *http.Request) bool { return clientOf(r).Principal != "" }
		n.restCatalog.Users = users{n.access}
	}
	mux.Handle("/iceberg/", http.StripPrefix("/iceberg", server.New(n.builtin, n.locator, n.restCatalog, n.log)))
	mux.Handle("/metrics", promhttp.HandlerFor(n.metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", n.health)
	mux.HandleFunc("/readyz", n.ready)
	n.handleAPI(mux)
	n.handleCatalogs(mux)
	n.handleNodes(mux)
	n.handlePartitions(mux)
	n.handlePeers(mux)
	n.handleObjects(mux)
	n.http = &http.Server{Handler: n.guard(required, mux), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
	listener := n.httpListener
	if n.cfg.HTTPTLS {
		listener = tls.NewListener(listener, n.tls.Config())
		n.http.ErrorLog = slog.NewLogLogger(n.log.Handler(), slog.LevelDebug) // of handshakes that strangers begin
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := n.http.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			n.log.Error("http server ended", "err", err)
		}
	}()
	n.onClose("http", func(ctx context.Context) error {
		err := n.http.Shutdown(ctx)
		<-done
		return err
	})
	return nil
}

// health answers 200 as long as the node may acknowledge; it listens only once it is ready.
func (n *Node) health(w http.ResponseWriter, _ *http.Request) {
	if err := n.store.Err(); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Write([]byte("ok\n"))
}

// engineDefaults are the properties by which engines reach the warehouse; without secrets.
func (n *Node) engineDefaults() map[string]string {
	if !strings.HasPrefix(n.cfg.Warehouse, "s3://") {
		return nil
	}
	s3, _, err := objectstore.ParseS3URL(n.cfg.Warehouse)
	if err != nil {
		return nil // openBucket refused it already
	}
	defaults := map[string]string{}
	if s3.Endpoint != "" {
		defaults["s3.endpoint"] = s3.Endpoint
	}
	if s3.Region != "" {
		defaults["s3.region"], defaults["client.region"] = s3.Region, s3.Region
	}
	if s3.PathStyle {
		defaults["s3.path-style-access"] = "true"
	}
	return defaults
}
