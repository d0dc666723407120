// Package storage is the wing of the volumes of pods. It has no code of its own.
//
// In: the pod, and the objects that its volumes project.
// Out: directories and mounts that are in place before a container starts, kept current while it runs, and removed when the
// pod has ended (volumes). volumecontent decides the files of a projected volume, atomicdir writes them as a whole.
// Imports: pod.
package storage
