package nodeobject

// webSockets is the feature by which an API server passes streams over WebSocket on to the node as they are, and translates none.
const webSockets = "ExtendWebSocketsToKubelet"

// restartAll is the feature by which a rule of a container restarts all containers of its pod. A scheduler gives pods with such a rule to
// nodes that declare it.
const restartAll = "RestartAllContainersOnContainerExits"

// declared are the features that the node says it has, among those that Kubernetes asks nodes about, in the order of their names.
func declared(in Input) []string {
	if in.Settings.Port == 0 {
		return []string{restartAll} // it serves no streams
	}
	return []string{webSockets, restartAll}
}
