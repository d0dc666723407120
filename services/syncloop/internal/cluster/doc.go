// Package cluster is the wing of the API server's side: what pods need from it and what it is told. It has no code of its
// own.
//
// In: config maps and secrets (configobjects), tokens of service accounts (tokens), certificates and roots (podcertificates,
// clustertrustbundles), runtime classes (runtimeclasses), services (servicelinks).
// Out: pod statuses (statusmanager), mirror pods (mirrorpods), events (podevents).
// A standalone node has config maps and secrets from configmux, and nothing else of these.
// Imports: pod.
package cluster
