//go:build !amd64

package vm

// clockParameters returns none, because machines are of another architecture than this one.
func clockParameters() string { return "" }
