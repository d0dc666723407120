// Package dashboard has the tests of the Prometheus and Grafana configuration in deploy/compose: each query of the
// dashboard and of the alerts can be parsed and uses metrics and labels that docs/reference/metrics.md lists; the files
// agree on names and addresses. It is a module of its own, because nothing else needs Prometheus' parser.
package dashboard
