package nodeobject

// webSockets is the feature by which an API server passes WebSocket streams to the node without translation.
const webSockets = "ExtendWebSocketsToKubelet"

// restartAll is the feature by which a rule of a container restarts all containers of its pod. A scheduler assigns pods
// with such a rule to nodes that declare it.
const restartAll = "RestartAllContainersOnContainerExits"

// Of a node that does not declare these features, an API server changes neither the resources of a pod as a whole nor
// those of an ordinary init container.
const (
	resizesPodLevel = "InPlacePodLevelResourcesVerticalScaling"
	resizesInit     = "InPlacePodVerticalScalingInitContainers"
)

// declared are the features that the node says it has, among those that Kubernetes asks nodes about, in the order of
// their names.
func declared(in Input) []string {
	var names []string
	if in.Settings.Port != 0 { // otherwise it serves no streams
		names = append(names, webSockets)
	}
	if in.Settings.ResizesPodLevel {
		names = append(names, resizesPodLevel)
	}
	return append(names, resizesInit, restartAll)
}
