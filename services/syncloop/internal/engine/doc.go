// Package engine is the wing of the sync loop and its workers. It has no code of its own.
//
// In: PodUpdates from configmux and lifecycle events from pleg, by the clients in package clients.
// Out: the work of one worker for each pod (podworkers), and the store of pods and statuses (podstore), which the API
// reads.
// Three books keep on disk the state that must survive a restart: gracebook the terminations in progress, evictionbook
// the evicted pods, and resizes the records of resized pods.
// Imports: every wing but node and api.
package engine
