package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const claimManifest = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s, namespace: e2e}
spec:
  accessModes: [%s]
  resources: {requests: {storage: 1Mi}}
---
`

// withClaim is a pod that mounts a volume at /data, of the user 1000 and the group 2000.
func withClaim(name, volume string) string {
	pod := strings.Replace(manifest(name, 1, "sleep"), `args: ["sleep"]`,
		`args: ["sleep"], volumeMounts: [{name: data, mountPath: /data}]`, 1)
	return pod + "  volumes: [{name: data, " + volume + "}]\n  securityContext: {fsGroup: 2000}\n"
}

// statusOfClaim returns the STATUS of a claim in `quartet get pvc`; empty if there is none.
func statusOfClaim(t *testing.T, name string) string {
	t.Helper()
	out, err := node.Command(t.Context(), "get", "pvc", "-n", "e2e")
	if err != nil {
		return "" // syncloop or configmux may be down
	}
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "e2e/"+name {
			return fields[1]
		}
	}
	return ""
}

func killSyncloop(t *testing.T) {
	t.Helper()
	killThose(t, "syncloop")
}

// killThose kills processes at once, and waits for the next ones.
func killThose(t *testing.T, names ...string) {
	t.Helper()
	old := map[string]int{}
	for _, name := range names {
		old[name] = pid(t, name)
	}
	kill(t, names...)
	for _, name := range names {
		awaitNewPID(t, name, old[name])
	}
}

// TestAClaimOutlivesItsPodsAndIsRemovedWithItsData: what a pod writes to a claim, the next pod reads, across a kill of
// syncloop; a deleted claim is Terminating until its pod ends, also across a kill, and then nothing is left.
func TestAClaimOutlivesItsPodsAndIsRemovedWithItsData(t *testing.T) {
	claim := write(t, "claim.yaml", fmt.Sprintf(claimManifest, "kept", "ReadWriteOncePod"))
	const volume = "persistentVolumeClaim: {claimName: kept}"
	place(t, "first.yaml", withClaim("claimfirst", volume))
	awaitFailedMount(t, "claimfirst", `persistentvolumeclaim "kept" not found: apply it`)
	quartet(t, "apply", "-f", claim)
	t.Cleanup(func() { _, _ = node.Command(context.Background(), "delete", "-f", claim) }) // it may be deleted already
	first := await(t, "claimfirst", "Ready", ready)
	data := filepath.Join(inside(t, first, "main"), "data")
	if err := os.WriteFile(filepath.Join(data, "file"), []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(data); err != nil || owner(info).Gid != 2000 {
		t.Errorf("the group is %d, %v, want 2000", owner(info).Gid, err)
	}
	if status := statusOfClaim(t, "kept"); status != "Bound" {
		t.Errorf("the claim is %q, want %q", status, "Bound")
	}
	place(t, "second.yaml", withClaim("claimsecond", volume))
	awaitFailedMount(t, "claimsecond", "volume uses the ReadWriteOncePod access mode and is already in use by another pod")
	killSyncloop(t)
	if again := await(t, "claimfirst", "Ready", ready); fmt.Sprint(containerIDs(again)) != fmt.Sprint(containerIDs(first)) {
		t.Error("the kill has restarted the pod")
	}
	takeAway(t, "first.yaml")
	awaitGone(t, "claimfirst")
	second := await(t, "claimsecond", "Ready", ready)
	killThose(t, "configmux", "syncloop") // the claim is not deleted while configmux has not read it
	awaitThat(t, "the claim is Bound again", func() bool { return statusOfClaim(t, "kept") == "Bound" })
	if content, err := os.ReadFile(filepath.Join(inside(t, second, "main"), "data", "file")); err != nil || string(content) != "kept" {
		t.Errorf("the second pod reads %q, %v, want %q", content, err, "kept")
	}

	quartet(t, "delete", "-f", claim)
	awaitThat(t, "the claim is Terminating", func() bool { return statusOfClaim(t, "kept") == "Terminating" })
	killSyncloop(t)
	awaitThat(t, "the claim is Terminating again", func() bool { return statusOfClaim(t, "kept") == "Terminating" })
	awaitThat(t, "the claim is described with its pod", func() bool {
		return strings.Contains(quartet(t, "describe", "pvc", "-n", "e2e", "kept"), "e2e/claimsecond")
	})
	await(t, "claimsecond", "Ready", ready)
	takeAway(t, "second.yaml")
	awaitGone(t, "claimsecond")
	awaitNoClaims(t, "kept")
}

// awaitNoClaims waits until nothing is left of the claims of these tests.
func awaitNoClaims(t *testing.T, name string) {
	t.Helper()
	dir := filepath.Join(node.Layout.StateDir(), "claims", "e2e")
	awaitThat(t, "the data are removed", func() bool {
		entries, err := os.ReadDir(dir)
		return (err == nil && len(entries) == 0 || errors.Is(err, os.ErrNotExist)) && statusOfClaim(t, name) == ""
	})
}

// TestClaimsOfManifestsAndOfPodsGoWithThem: a claim of a manifest, and that of an ephemeral volume.
func TestClaimsOfManifestsAndOfPodsGoWithThem(t *testing.T) {
	place(t, "claimed.yaml", fmt.Sprintf(claimManifest, "beside", "ReadWriteOnce")+
		withClaim("claimed", "persistentVolumeClaim: {claimName: beside}"))
	place(t, "scratch.yaml", withClaim("scratch",
		"ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}}}"))
	for _, name := range []string{"claimed", "scratch"} {
		p := await(t, name, "Ready", ready)
		if err := os.WriteFile(filepath.Join(inside(t, p, "main"), "data", "file"), nil, 0o600); err != nil {
			t.Error(err)
		}
	}
	scratch := await(t, "scratch", "Ready", ready).Name + "-data"
	for _, name := range []string{"beside", scratch} {
		if status := statusOfClaim(t, name); status != "Bound" {
			t.Errorf("the claim %s is %q, want %q", name, status, "Bound")
		}
	}
	for file, name := range map[string]string{"claimed.yaml": "claimed", "scratch.yaml": "scratch"} {
		takeAway(t, file)
		awaitGone(t, name)
	}
	awaitNoClaims(t, scratch)
}
