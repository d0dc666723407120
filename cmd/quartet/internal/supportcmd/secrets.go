package supportcmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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
// removed from the texts. What it could not ask for is a gap: then the patterns remain.
func (c *collector) secretsOfPods(ctx context.Context) []string {
	var variables []string
	held, err := c.secretsOfConfigmux(ctx)
	if err != nil {
		c.gap("configmux does not tell the secrets of the node", err)
	}
	err = c.ask(ctx, layout.SyncLoop, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		variables, err = environments(ctx, enginev1.NewEngineServiceClient(conn))
		return err
	})
	if err != nil {
		c.gap("syncloop does not tell the environment of pods", err)
	}
	return append(held, variables...)
}

// secretsOfConfigmux returns the values of the secrets that configmux serves to the node. A node with an API server
// holds none; then configmux, of the node or of a site, is not asked to watch them either.
func (c *collector) secretsOfConfigmux(ctx context.Context) (held []string, err error) {
	if elsewhere, found := target.ConfigmuxElsewhere(c.layout.StateDir()); found && !elsewhere.Objects {
		return nil, nil
	}
	err = c.ask(ctx, layout.ConfigMux, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		held, err = heldSecrets(ctx, configv1.NewConfigServiceClient(conn))
		return err
	})
	if status.Code(err) == codes.Unimplemented {
		return held, nil
	}
	return held, err
}

// gap notes that values could not be had, so that they are known by their form only.
func (c *collector) gap(what string, err error) {
	c.gaps = append(c.gaps, what+": "+strings.Join(strings.Fields(err.Error()), " "))
}

// ask calls a process. It fails if the process cannot be reached, and with the error of the call.
func (c *collector) ask(
	ctx context.Context, service layout.Service, call func(context.Context, *grpc.ClientConn) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	node := target.Node{StateDir: c.layout.StateDir()}
	conn, err := node.Connect(ctx, service)
	if err != nil {
		return err
	}
	return errors.Join(call(ctx, conn), conn.Close())
}

// heldSecrets returns the values of the secrets of a node without an API server; with an error those that came before.
func heldSecrets(ctx context.Context, client configv1.ConfigServiceClient) ([]string, error) {
	watch, err := client.WatchObjects(ctx, &configv1.WatchObjectsRequest{Kind: "Secret"})
	if err != nil {
		return nil, err
	}
	var values []string
	for {
		m, err := watch.Recv()
		if err != nil {
			return values, err
		}
		if m.GetFrame().GetKind() == streamv1.Kind_KIND_SYNCED {
			return values, nil
		}
		var secret corev1.Secret
		if err := secret.Unmarshal(m.GetObject().GetObject()); err != nil {
			return values, fmt.Errorf("a secret is unreadable: %w", err)
		}
		for _, value := range secret.Data {
			values = append(values, string(value))
		}
	}
}

// environments returns the values of the environment of all pods; with an error those of the readable ones.
func environments(ctx context.Context, client enginev1.EngineServiceClient) (values []string, err error) {
	response, err := client.ListPods(ctx, &enginev1.ListPodsRequest{})
	if err != nil {
		return nil, err
	}
	for _, item := range response.GetPods() {
		var pod corev1.Pod
		if wrong := pod.Unmarshal(item.GetPod()); wrong != nil {
			err = fmt.Errorf("a pod is unreadable: %w", wrong)
			continue
		}
		values = append(values, environment(&pod)...)
	}
	return values, err
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
	take := func(path, field string) {
		found, err := valuesBelow(path, field)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.gap("credentials in "+path+" are not known", err)
		}
		values = append(values, found...)
	}
	for _, path := range paths(processes, "kubeconfig", "bootstrap-kubeconfig") {
		take(path, "users")
	}
	for _, path := range c.configFiles(processes) {
		take(path, headerField)
	}
	return values
}

// valuesBelow returns all texts below a field of a YAML file.
func valuesBelow(path, field string) ([]string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var document map[string]any
	if yaml.Unmarshal(content, &document) != nil {
		return nil, errors.New("it is not YAML") // the error of the parser may quote it
	}
	return texts(document[field]), nil
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
