// Package cluster is the wing of the API server: it provides what pods need from the API server and reports to it.
// [Link] holds all of it: [Connect] returns the Link of a node in a cluster, [Standalone] that of a node without an API
// server.
//
// In: config maps and secrets (configobjects), tokens of service accounts (tokens), certificates and trust anchors
// (podcertificates, clustertrustbundles), runtime classes (runtimeclasses), services (servicelinks), claims of volumes
// (claims), resource claims (dynamicresources). Out: pod statuses (statusmanager), mirror pods (mirrorpods), events
// (podevents). A standalone node has config maps and secrets from configmux, and nothing else of these. Imports: pod.
package cluster
