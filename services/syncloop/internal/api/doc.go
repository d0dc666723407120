// Package api is the wing of syncloop's servers. It has no code of its own.
//
// In: requests to the kubelet's HTTP API (kubeletapi, authorized by apiauth, with the certificate of servingcert), to
// EngineService (engineapi), and to the sockets of the pod-resources API (podresources) and of the pods API (podsapi),
// which localapi serves. Out: answers from the store, from stats and from the runtime. Imports: any wing.
package api
