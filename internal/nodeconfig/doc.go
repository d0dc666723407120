// Package nodeconfig reads the configuration of a node: the kubelet's KubeletConfiguration file and the flags that all
// four services share. The four services read the same file, so that one file describes a node, and the file of an
// existing node works unchanged.
//
// The file is decoded strictly. An unknown field is an error with its line. A field that the kubelet has and Quartet
// does not implement is named in one warning at the start, by the service that would implement it, see
// [Config.LogUnsupported]. All errors, of flags and of the file, are reported at once.
//
// The defaults are the kubelet's, with one exception: without address in the file, a standalone node serves its HTTP
// APIs on the loopback interface only.
package nodeconfig
