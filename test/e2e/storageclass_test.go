package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/test/eventually"
)

// storageDriver is the CSI driver of the tests as a static pod, with its object and a storage class. Its placeholders
// are the directory of the program, that of the volumes, and the node's root directory.
const storageDriver = `apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: dirs.quartet.test}
spec: {attachRequired: true, podInfoOnMount: true, fsGroupPolicy: File, volumeLifecycleModes: [Persistent, Ephemeral]}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: dirs}
provisioner: dirs.quartet.test
allowVolumeExpansion: true
---
apiVersion: v1
kind: Pod
metadata: {name: csi, namespace: e2e}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: driver
    image: ` + image + `
    command: [/driver/csidriver, -node=e2e, -registry=/registry, -endpoint=ROOT/plugins/dirs.quartet.test/csi.sock]
    securityContext: {privileged: true}
    volumeMounts:
    - {name: driver, mountPath: /driver}
    - {name: volumes, mountPath: /volumes}
    - {name: socket, mountPath: /csi}
    - {name: registry, mountPath: /registry}
    - {name: root, mountPath: ROOT, mountPropagation: Bidirectional}
    - {name: dev, mountPath: /dev}
  volumes:
  - {name: driver, hostPath: {path: DRIVER}}
  - {name: volumes, hostPath: {path: VOLUMES}}
  - {name: socket, hostPath: {path: ROOT/plugins/dirs.quartet.test, type: DirectoryOrCreate}}
  - {name: registry, hostPath: {path: ROOT/plugins_registry}}
  - {name: root, hostPath: {path: ROOT}}
  - {name: dev, hostPath: {path: /dev}}
`

const classClaim = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s, namespace: e2e}
spec:
  storageClassName: dirs
  accessModes: [ReadWriteOnce]
  volumeMode: %s
  resources: {requests: {storage: %s}}
---
`

// withDriver returns the manifest of a driver, whose program is a package of the module at a path, and the directory of
// its volumes.
func withDriver(t *testing.T, module, program string) (manifest, volumes string) {
	t.Helper()
	dir, volumes := t.TempDir(), t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "-C", module, "build", "-o", filepath.Join(dir, "csidriver"), program)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the driver: %v\n%s", err, out)
	}
	return strings.NewReplacer("ROOT", node.Layout.Root(), "DRIVER", dir, "VOLUMES", volumes).Replace(storageDriver), volumes
}

// volumesIn returns the IDs of the volumes that the driver has.
func volumesIn(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "volumes", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for i, file := range files {
		files[i] = strings.TrimSuffix(filepath.Base(file), ".json")
	}
	return files
}

// TestAStorageClassOfADriverInAPod has a node without an API server whose CSI driver is a static pod: a claim waits for
// it, gets a volume, keeps it across a kill of syncloop and the end of its pod, grows, and is deleted with its volume.
// An inline volume and a block device work too.
func TestAStorageClassOfADriverInAPod(t *testing.T) {
	driver, volumes := withDriver(t, "../csidriver", "./csidriver")
	const volume = "persistentVolumeClaim: {claimName: disk}"
	claim := write(t, "claim.yaml", fmt.Sprintf(classClaim, "disk", "Filesystem", "8Mi"))
	t.Cleanup(func() { _, _ = node.Command(context.Background(), "delete", "-f", claim) }) // it may be deleted already
	quartet(t, "apply", "-f", claim)
	place(t, "first.yaml", withClaim("diskfirst", volume))
	awaitFailedMount(t, "diskfirst", `storageclass.storage.k8s.io "dirs" not found: apply it`)
	place(t, "csi.yaml", driver)
	await(t, "csi", "Ready", ready)
	first := await(t, "diskfirst", "Ready", ready)
	data := filepath.Join(inside(t, first, "main"), "data")
	if err := os.WriteFile(filepath.Join(data, "file"), []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(data); err != nil || owner(info).Gid != 2000 {
		t.Errorf("the group is %d, %v, want 2000", owner(info).Gid, err)
	}
	made := volumesIn(t, volumes)
	if status := statusOfClaim(t, "disk"); status != "Bound" || len(made) != 1 {
		t.Errorf("the claim is %q, the driver has %q", status, made)
	}
	killSyncloop(t)
	if again := await(t, "diskfirst", "Ready", ready); fmt.Sprint(containerIDs(again)) != fmt.Sprint(containerIDs(first)) {
		t.Error("the kill has restarted the pod")
	}
	larger := write(t, "larger.yaml", fmt.Sprintf(classClaim, "disk", "Filesystem", "16Mi"))
	quartet(t, "apply", "-f", larger)
	awaitThat(t, "the claim has its new size", func() bool {
		out, err := node.Command(t.Context(), "get", "pvc", "-n", "e2e", "disk", "-o", "jsonpath={.status.capacity.storage}")
		return err == nil && strings.TrimSpace(out) == "16Mi"
	})
	takeAway(t, "first.yaml")
	awaitGone(t, "diskfirst")
	place(t, "second.yaml", withClaim("disksecond", volume))
	second := await(t, "disksecond", "Ready", ready)
	if content, err := os.ReadFile(filepath.Join(inside(t, second, "main"), "data", "file")); err != nil || string(content) != "kept" {
		t.Errorf("the second pod reads %q, %v, want %q", content, err, "kept")
	}
	if again := volumesIn(t, volumes); fmt.Sprint(again) != fmt.Sprint(made) {
		t.Errorf("the driver has %q, and had %q", again, made)
	}

	quartet(t, "delete", "-f", claim)
	awaitThat(t, "the claim is Terminating", func() bool { return statusOfClaim(t, "disk") == "Terminating" })
	takeAway(t, "second.yaml")
	awaitGone(t, "disksecond")
	awaitThat(t, "the volume is deleted", func() bool {
		return len(volumesIn(t, volumes)) == 0 && statusOfClaim(t, "disk") == ""
	})
	inlineAndBlock(t, volumes)
}

// inlineAndBlock checks an inline volume of the driver, and a block device of a claim of a manifest.
func inlineAndBlock(t *testing.T, volumes string) {
	t.Helper()
	place(t, "inline.yaml", withClaim("inline", "csi: {driver: dirs.quartet.test}"))
	raw := strings.Replace(manifest("raw", 1, "sleep"), `args: ["sleep"]`,
		`args: ["sleep"], volumeDevices: [{name: data, devicePath: /dev/raw}]`, 1)
	place(t, "raw.yaml", fmt.Sprintf(classClaim, "raw", "Block", "1Mi")+raw+
		"  volumes: [{name: data, persistentVolumeClaim: {claimName: raw}}]\n")
	inline := await(t, "inline", "Ready", ready)
	if err := os.WriteFile(filepath.Join(inside(t, inline, "main"), "data", "file"), nil, 0o600); err != nil {
		t.Error(err)
	}
	device := await(t, "raw", "Ready", ready)
	info, err := os.Stat(filepath.Join(inside(t, device, "main"), "dev", "raw"))
	if err != nil || info.Mode()&os.ModeDevice == 0 {
		t.Errorf("the device is %v, %v", info, err)
	}
	for file, name := range map[string]string{"inline.yaml": "inline", "raw.yaml": "raw"} {
		takeAway(t, file)
		awaitGone(t, name)
	}
	eventually.That(t, "the volumes are deleted", func() bool { return len(volumesIn(t, volumes)) == 0 })
}
