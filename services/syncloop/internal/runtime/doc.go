// Package runtime is the wing of everything that is done to the container runtime and to the kernel for pods. It has no
// code of its own.
//
// In: the pod, and what decide says is to be done. Out: CRI calls (executor), pulled images (images, imagecredentials,
// pullrecords), cgroups (podcgroups), user namespaces (userns), and the removal of what is no longer needed
// (containergc, imagegc, logrotate, loglinks). Imports: pod, storage, cluster.
package runtime
