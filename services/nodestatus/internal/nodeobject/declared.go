package nodeobject

// webSockets is the feature by which an API server passes streams over WebSocket on to the node as they are, and translates none.
const webSockets = "ExtendWebSocketsToKubelet"

// declared are the features that the node says it has, among those that Kubernetes asks nodes about.
func declared(in Input) []string {
	if in.Settings.Port == 0 {
		return nil // it serves no streams
	}
	return []string{webSockets}
}
