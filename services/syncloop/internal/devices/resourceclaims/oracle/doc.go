// Package oracle compares the preparation of resource claims with the kubelet's DRA manager. It is a module of its own,
// because the product does not link the kubelet.
package oracle
