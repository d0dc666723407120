// Package runtime is the wing of all changes to the container runtime and the kernel for pods. It has no code of its
// own.
//
// In: the pod, and the actions that decide returns. Out: CRI calls (executor), pulled images (images, imagecredentials,
// pullrecords), cgroups (podcgroups), user namespaces (userns), and the removal of unneeded objects (containergc,
// imagegc, logrotate, loglinks). Imports: pod, storage, cluster.
package runtime
