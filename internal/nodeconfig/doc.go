// Package nodeconfig reads the configuration of a node: the kubelet's own KubeletConfiguration file and the flags that
// all four services share. The four read the same file, so that one file describes a node, and a file of an existing
// node works as it is.
//
// The file is decoded strictly. A field that does not exist is an error with its line; a field that the kubelet has and
// Quartet does not act on is named in one warning at the start, by the service that would act on it, see
// [Config.LogUnsupported]. All errors, of flags and of the file, are reported at once.
//
// The defaults are the kubelet's, with one exception: without address in the file, a node without a cluster serves its HTTP APIs on the
// loopback interface only.
package nodeconfig
