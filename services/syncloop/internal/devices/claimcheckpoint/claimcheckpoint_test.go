package claimcheckpoint_test

import (
	"encoding/json"
	"errors"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/claimbook"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/claimcheckpoint"
)

// Files of a kubelet; the second one is from its own test.
const (
	noClaim  = `{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"ClaimInfoStateList\":null}","Checksum":4010664294}`
	oneClaim = `{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"ClaimInfoStateList\":[{\"ClaimUID\":\"067798be-454e-4be4-9047-1aa06aea63f7\",\"ClaimName\":\"example\",\"Namespace\":\"default\",\"PodUIDs\":{\"139cdb46-f989-4f17-9561-ca10cfb509a6\":{}},\"DriverState\":{\"test-driver.cdi.k8s.io\":{\"Devices\":[{\"PoolName\":\"worker-1\",\"DeviceName\":\"dev-1\",\"ShareID\":\"aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa\",\"RequestNames\":[\"test request\"],\"CDIDeviceIDs\":[\"example.com/example=cdi-example\"]}]}}}]}","Checksum":736302156}`
)

// example is the claim of oneClaim.
func example() []claimbook.Entry {
	return []claimbook.Entry{{
		Claim: claimbook.Claim{
			Name: types.NamespacedName{Namespace: "default", Name: "example"}, UID: "067798be-454e-4be4-9047-1aa06aea63f7",
			Drivers: map[string]claimbook.Driver{"test-driver.cdi.k8s.io": {Devices: []claimbook.Device{{
				Pool: "worker-1", Name: "dev-1", ShareID: ptr.To(types.UID("aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa")),
				Requests: []string{"test request"}, CDI: []string{"example.com/example=cdi-example"},
			}}}},
		},
		Pods: []types.UID{"139cdb46-f989-4f17-9561-ca10cfb509a6"},
	}}
}

// TestTheFileIsTheKubelets in both directions.
func TestTheFileIsTheKubelets(t *testing.T) {
	for _, tc := range []struct {
		entries []claimbook.Entry
		file    string
	}{{file: noClaim}, {entries: example(), file: oneClaim}} {
		dir := t.TempDir()
		if err := claimcheckpoint.Write(dir, tc.entries); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(dir, "dra_manager_state"))
		if err != nil || string(got) != tc.file {
			t.Errorf("%v: wrote\n%s\nwant\n%s", err, got, tc.file)
		}
		read, err := claimcheckpoint.Read(dir)
		if diff := cmp.Diff(append([]claimbook.Entry{}, tc.entries...), read); diff != "" || err != nil {
			t.Errorf("%v: read (-want +got):\n%s", err, diff)
		}
	}
}

// TestCallsThatADriverDoesNotNeedAreKept of a kubelet with another configuration.
func TestCallsThatADriverDoesNotNeedAreKept(t *testing.T) {
	dir, entries := t.TempDir(), example()
	d := entries[0].Drivers["test-driver.cdi.k8s.io"]
	d.Skips = []resourceapi.SkipNodeOperation{resourceapi.SkipNodeOperationNodeUnprepareResources}
	entries[0].Drivers["test-driver.cdi.k8s.io"] = d
	if err := claimcheckpoint.Write(dir, entries); err != nil {
		t.Fatal(err)
	}
	read, err := claimcheckpoint.Read(dir)
	if diff := cmp.Diff(entries, read); diff != "" || err != nil {
		t.Errorf("%v: read (-want +got):\n%s", err, diff)
	}
}

func TestADamagedFileIsSetAside(t *testing.T) {
	sum := func(data string) string {
		text, err := json.Marshal(map[string]any{"Data": data, "Checksum": crc32.ChecksumIEEE([]byte(data))})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, content := range []string{"", "{", `{"Data":"{}","Checksum":1}`, sum("["), sum(`{"ClaimInfoStateList":1}`)} {
		dir := t.TempDir()
		path := filepath.Join(dir, claimcheckpoint.File)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := claimcheckpoint.Read(dir)
		damaged := (*statedir.DamagedError)(nil)
		if !errors.As(err, &damaged) {
			t.Fatalf("%q: got %v", content, err)
		}
		if aside, err := os.ReadFile(damaged.Aside); err != nil || string(aside) != content {
			t.Errorf("%q is now %q, %v", content, aside, err)
		}
		if _, err := claimcheckpoint.Read(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("then %v, want %v", err, fs.ErrNotExist)
		}
	}
}

func TestClaimsAsText(t *testing.T) {
	text, err := claimcheckpoint.Encode([]claimbook.Claim{example()[0].Claim})
	if err != nil {
		t.Fatal(err)
	}
	got, err := claimcheckpoint.Decode(text)
	if diff := cmp.Diff([]claimbook.Claim{example()[0].Claim}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if _, err := claimcheckpoint.Decode("{"); err == nil {
		t.Error("nonsense is no error")
	}
}
