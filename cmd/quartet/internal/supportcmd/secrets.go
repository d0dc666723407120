package supportcmd

import (
	"context"
	"os"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/layout"
)

// askTimeout bounds a call.
const askTimeout = 5 * time.Second

// secretsOfPods returns the values of the secrets that the node holds, and of the environment of its pods. They are
// removed from the texts. Without an answer the patterns remain.
func (c *collector) secretsOfPods(ctx context.Context) []string {
	var values []string
	// A process that does not answer is named in its own files.
	_ = c.ask(ctx, layout.ConfigMux, func(ctx context.Context, conn *grpc.ClientConn) {
		values = append(values, heldSecrets(ctx, configv1.NewConfigServiceClient(conn))...)
	})
	_ = c.ask(ctx, layout.SyncLoop, func(ctx context.Context, conn *grpc.ClientConn) {
		response, err := enginev1.NewEngineServiceClient(conn).ListPods(ctx, &enginev1.ListPodsRequest{})
		if err != nil {
			return
		}
		for _, item := range response.GetPods() {
			var pod corev1.Pod
			if err := pod.Unmarshal(item.GetPod()); err == nil {
				values = append(values, environment(&pod)...)
			}
		}
	})
	return values
}

// ask calls a process. It fails if the process cannot be reached.
func (c *collector) ask(
	ctx context.Context, service layout.Service, call func(context.Context, *grpc.ClientConn),
) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	conn, err := target.Connect(ctx, c.layout.StateDir(), service)
	if err != nil {
		return err
	}
	call(ctx, conn)
	return conn.Close()
}

// heldSecrets returns the values of the secrets of a node without an API server.
func heldSecrets(ctx context.Context, client configv1.ConfigServiceClient) []string {
	watch, err := client.WatchObjects(ctx, &configv1.WatchObjectsRequest{Kind: "Secret"})
	if err != nil {
		return nil
	}
	var values []string
	for {
		m, err := watch.Recv()
		if err != nil || m.GetFrame().GetKind() == streamv1.Kind_KIND_SYNCED {
			return values
		}
		var secret corev1.Secret
		if secret.Unmarshal(m.GetObject().GetObject()) != nil {
			continue
		}
		for _, value := range secret.Data {
			values = append(values, string(value))
		}
	}
}

// environment returns the values of the environment of a pod's containers.
func environment(pod *corev1.Pod) []string {
	var values []string
	add := func(env []corev1.EnvVar) {
		for _, variable := range env {
			values = append(values, variable.Value)
		}
	}
	for i := range pod.Spec.InitContainers {
		add(pod.Spec.InitContainers[i].Env)
	}
	for i := range pod.Spec.Containers {
		add(pod.Spec.Containers[i].Env)
	}
	for i := range pod.Spec.EphemeralContainers {
		add(pod.Spec.EphemeralContainers[i].Env)
	}
	return values
}

// secretsOfFiles returns the credentials of the kubeconfigs, and the headers for manifests of the configurations.
func (c *collector) secretsOfFiles(processes map[layout.Service]process) []string {
	var values []string
	for _, path := range paths(processes, "kubeconfig", "bootstrap-kubeconfig") {
		values = append(values, valuesBelow(path, "users")...)
	}
	for _, path := range c.configFiles(processes) {
		values = append(values, valuesBelow(path, headerField)...)
	}
	return values
}

// valuesBelow returns all texts below a field of a YAML file.
func valuesBelow(path, field string) []string {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var document map[string]any
	if yaml.Unmarshal(content, &document) != nil {
		return nil
	}
	return texts(document[field])
}

// texts returns all texts in a value of YAML, without keys.
func texts(value any) []string {
	switch value := value.(type) {
	case string:
		return []string{value}
	case []any:
		var all []string
		for _, item := range value {
			all = append(all, texts(item)...)
		}
		return all
	case map[string]any:
		var all []string
		for _, item := range value {
			all = append(all, texts(item)...)
		}
		return all
	default:
		return nil
	}
}
