// Package oracle compares the assignment of memory and its alignment to NUMA nodes with the kubelet's memory manager
// and topology manager. It is a module of its own, because the product does not link the kubelet.
package oracle
