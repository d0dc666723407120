// Package cluster is the wing of the API server's side: what pods need from it and what it is told. [Link] is all of it: [Connect] returns
// that of a node in a cluster, [Standalone] that of a node without an API server.
//
// In: config maps and secrets (configobjects), tokens of service accounts (tokens), certificates and roots (podcertificates,
// clustertrustbundles), runtime classes (runtimeclasses), services (servicelinks).
// Out: pod statuses (statusmanager), mirror pods (mirrorpods), events (podevents).
// A standalone node has config maps and secrets from configmux, and nothing else of these.
// Imports: pod.
package cluster
