package e2e

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// secretValue must appear only in the container.
const secretValue = "dont-tell-4711"

// withObjects is a pod with environment variables from a config map and a secret, and these two objects.
const withObjects = `apiVersion: v1
kind: ConfigMap
metadata: {name: objects, namespace: e2e}
data: {LEVEL: %s, MODE: fast}
---
apiVersion: v1
kind: Secret
metadata: {name: objects, namespace: e2e}
stringData: {password: %s}
`

const environmentOfObjects = `
    envFrom:
    - {prefix: APP_, configMapRef: {name: objects}}
    - {configMapRef: {name: not-there, optional: true}}
    env:
    - {name: PASSWORD, valueFrom: {secretKeyRef: {name: objects, key: password}}}
    - {name: ADDRESS, value: "$(APP_MODE)://shop"}
`

// write writes a manifest to a file of the test.
func write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// waitsFor reports whether the only container of a pod waits with a reason and a message.
func waitsFor(p *v1.Pod, reason, message string) bool {
	if p == nil || len(p.Status.ContainerStatuses) == 0 {
		return false
	}
	w := p.Status.ContainerStatuses[0].State.Waiting
	return w != nil && w.Reason == reason && w.Message == message
}

func TestAPodHasItsEnvironmentFromAppliedObjects(t *testing.T) {
	objects := write(t, "objects.yaml", fmt.Sprintf(withObjects, "info", secretValue))
	pod := manifest("objects", 1, "env")
	pod = strings.Replace(pod, "  - {name: main, image: ", "  - name: main\n    image: ", 1)
	pod = strings.Replace(pod, `, args: ["env"]}`, "\n    args: [\"env\"]", 1) + strings.TrimPrefix(environmentOfObjects, "\n")
	place(t, "objects.yaml", pod)
	await(t, "objects", "waiting for its config map", func(p *v1.Pod) bool {
		return waitsFor(p, "CreateContainerConfigError", `configmap "objects" not found`)
	})

	quartet(t, "apply", "-f", objects)
	t.Cleanup(func() {
		if _, err := node.Command(context.Background(), "delete", "-f", objects); err != nil {
			t.Error(err)
		}
	})
	started := await(t, "objects", "Ready", ready)
	name := started.Name
	var log string
	awaitThat(t, "the container has printed its environment", func() bool {
		log, _ = node.Command(t.Context(), "logs", "e2e/"+name)
		return strings.Contains(log, "PASSWORD=")
	})
	for _, want := range []string{"APP_LEVEL=info\n", "APP_MODE=fast\n", "PASSWORD=" + secretValue + "\n", "ADDRESS=fast://shop\n"} {
		if !strings.Contains(log, want) {
			t.Errorf("the environment lacks %q:\n%s", want, log)
		}
	}

	// A running container is not affected by a change of its objects, or by the end of their source.
	before := fmt.Sprint(containerIDs(started))
	quartet(t, "apply", "-f", write(t, "changed.yaml", fmt.Sprintf(withObjects, "debug", secretValue)))
	for _, victim := range []string{"configmux", "syncloop"} {
		old := pid(t, victim)
		kill(t, victim)
		awaitNewPID(t, victim, old)
	}
	// A container that is started now has the changes, and the objects from before the kills.
	place(t, "objects2.yaml", strings.Replace(pod, "name: objects,", "name: later,", 1))
	later := await(t, "later", "Ready", ready)
	awaitThat(t, "the later container has printed its environment", func() bool {
		log, _ = node.Command(t.Context(), "logs", "e2e/"+later.Name)
		return strings.Contains(log, "APP_LEVEL=debug\n") && strings.Contains(log, "PASSWORD="+secretValue+"\n")
	})
	if after := fmt.Sprint(containerIDs(await(t, "objects", "Ready", ready))); after != before {
		t.Errorf("containers went from %s to %s", before, after)
	}
	checkSecretNotLeaked(t, name)
	for file, name := range map[string]string{"objects.yaml": "objects", "objects2.yaml": "later"} {
		takeAway(t, file)
		awaitGone(t, name)
	}
}

// checkSecretNotLeaked checks that the secret is in no output of the node about a pod and itself.
func checkSecretNotLeaked(t *testing.T, pod string) {
	t.Helper()
	checkOutputsWithoutSecret(t, map[string]string{"describe": quartet(t, "describe", "pod", "e2e/"+pod), "get": quartet(t, "get", "secrets", "-o", "yaml")})
}

// checkOutputsWithoutSecret checks that the secret is not in the given outputs and in the logs of the node.
func checkOutputsWithoutSecret(t *testing.T, outputs map[string]string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(node.Layout.Logs(), "*.log"))
	if err != nil || len(files) == 0 {
		t.Fatalf("logs %v, error %v", files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		outputs[file] = string(data)
	}
	inJSON := base64.StdEncoding.EncodeToString([]byte(secretValue))
	for where, text := range outputs {
		if strings.Contains(text, secretValue) || strings.Contains(text, inJSON) {
			t.Errorf("%s has the value of the secret, want text with without %q and with without %q",
				where, secretValue, inJSON)
		}
	}
}
