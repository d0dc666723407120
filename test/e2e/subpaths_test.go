package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

const parts = `apiVersion: v1
kind: Pod
metadata: {name: parts, namespace: e2e}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: %[1]q
    args: [sleep]
    env: [{name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    volumeMounts:
    - {name: host, mountPath: /file, subPath: deep/file, readOnly: true}
    - {name: host, mountPath: /own, subPathExpr: made/$(POD)}
    - {name: memory, mountPath: /part, subPath: made/too}
  volumes:
  - {name: host, hostPath: {path: %[2]q, type: Directory}}
  - {name: memory, emptyDir: {medium: Memory}}
`

// TestPartsOfVolumesAreMountedAndNothingOutsideOfThem tests files, created folders, and paths with the name of the pod.
// The mounts survive a kill of syncloop and are removed with the pod, but their sources remain. A link that leads out
// of the volume is not followed.
func TestPartsOfVolumesAreMountedAndNothingOutsideOfThem(t *testing.T) {
	host := t.TempDir()
	if err := os.MkdirAll(filepath.Join(host, "deep"), 0o750); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{"deep/file": "inside", "not-mounted": "x"} {
		if err := os.WriteFile(filepath.Join(host, path), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	place(t, "parts.yaml", fmt.Sprintf(parts, image, host))
	p := await(t, "parts", "Ready", ready)
	root := inside(t, p, "main")
	if got, err := os.ReadFile(root + "/file"); err != nil || string(got) != "inside" {
		t.Errorf("the file has %q, %v, want %q", got, err, "inside")
	}
	if err := os.WriteFile(root+"/own/mine", []byte("x"), 0o600); err != nil {
		t.Errorf("the folder of the pod's name cannot be written to: %v", err)
	}
	kept := filepath.Join(host, "made", p.Name, "mine")
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("what was written there is not in the volume: %v", err)
	}
	before := mounts(t, p)
	if len(before) != 4 {
		t.Errorf("mounted is %v, want the volume in memory and three parts", before)
	}
	old := pid(t, "syncloop")
	kill(t, "syncloop")
	awaitNewPID(t, "syncloop", old)
	await(t, "parts", "Ready", ready)
	if after := mounts(t, p); !maps.Equal(before, after) {
		t.Errorf("mounted was %v, and is %v after a kill of syncloop", before, after)
	}
	takeAway(t, "parts.yaml")
	awaitGone(t, "parts")
	awaitNothingLeft(t, p)
	for _, path := range []string{kept, filepath.Join(host, "not-mounted")} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("of the node: %v", err)
		}
	}

	if err := os.RemoveAll(filepath.Join(host, "deep")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc", filepath.Join(host, "deep")); err != nil {
		t.Fatal(err)
	}
	leading := strings.ReplaceAll(strings.ReplaceAll(parts, "name: parts", "name: leading"), "deep/file", "deep/passwd")
	place(t, "leading.yaml", fmt.Sprintf(leading, image, host))
	p = await(t, "leading", "waiting for its container", waits("CreateContainerConfigError"))
	const why = `failed to prepare subPath for volumeMount "host" of container "main"`
	if w := p.Status.ContainerStatuses[0].State.Waiting; w == nil || !strings.Contains(w.Message, why) ||
		p.Status.Phase != v1.PodPending {
		t.Errorf("a link that leads out of the volume makes\n%s", describe(p))
	}
}
