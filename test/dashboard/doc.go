// Package dashboard is the tests of what deploy/compose gives Prometheus and Grafana: that each query of the dashboard and
// of the alerts can be parsed, and asks for metrics and labels that docs/reference/metrics.md lists; and that the pieces agree on
// names and addresses. It is a module of its own, since Prometheus' parser is needed for nothing else.
package dashboard
