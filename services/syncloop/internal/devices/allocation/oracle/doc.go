// Package oracle compares the allocation of devices with the kubelet's device manager. It is a module of its own,
// because the product does not link the kubelet.
package oracle
