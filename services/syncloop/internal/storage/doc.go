// Package storage is the wing for the volumes of pods. It has no code of its own.
//
// In: the pod, and the objects that its volumes project. Out: directories and mounts that are set up before a
// container starts, kept current while it runs, and removed when the pod has ended (volumes). volumecontent computes
// the files of a projected volume, and atomicdir writes them atomically. persistentvolumes mounts what claims are
// bound to, and nodeclaims has the claims of a node without an API server. plugins registers the programs that serve
// volumes, and csidrivers connects to them; csi mounts the volumes of such drivers. blockdevice holds their block
// devices and those of the node. All retry after the delays of backoff. Imports: pod.
package storage
