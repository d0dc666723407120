// Package oracle compares the assignment of CPUs and their alignment to NUMA nodes with the kubelet's CPU manager and
// topology manager. It is a module of its own, because the product does not link the kubelet.
package oracle
