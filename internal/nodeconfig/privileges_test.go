package nodeconfig

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/quartet-node/quartet/internal/privilege"
)

func TestEverySourceMayHaveWhatNoFlagRestricts(t *testing.T) {
	every := []string{"*"}
	for _, tc := range []struct {
		args []string
		want HostPrivileges
	}{
		{nil, HostPrivileges(privilege.Everything())},
		{
			[]string{"--host-network-sources=file, http,file", "--host-pid-sources=", "--host-ipc-sources", "local,*", "--privileged-sources=api"},
			HostPrivileges{
				HostNetwork: []string{"file", "http"}, HostIPC: every, Privileged: []string{"api"},
				HostPath: every, HostPorts: every, Capabilities: every, UnmaskedProc: every,
			},
		},
		{
			[]string{
				"--host-network-sources=", "--host-pid-sources=", "--host-ipc-sources=", "--privileged-sources=",
				"--host-path-sources=file", "--host-port-sources=http", "--added-capabilities-sources=api", "--unmasked-proc-sources=local",
			},
			HostPrivileges{
				HostPath: []string{"file"}, HostPorts: []string{"http"}, Capabilities: []string{"api"}, UnmaskedProc: []string{"local"},
			},
		},
	} {
		for _, service := range []Service{ConfigMux, SyncLoop} {
			if diff := cmp.Diff(tc.want, parse(t, service, tc.args...).HostPrivileges); diff != "" {
				t.Errorf("%s %q (-want +got):\n%s", service, tc.args, diff)
			}
		}
	}
}

func TestSourcesThatDoNotExistAreRefusedWithTheFlag(t *testing.T) {
	for args, want := range map[string]string{
		"--host-network-sources=files":               `--host-network-sources: "files" is no source of pods: name file, http, api, local, separated by commas, or * for all`,
		"--host-pid-sources=file,FILE":               `--host-pid-sources: "FILE" is no source of pods`,
		"--host-ipc-sources=none":                    `--host-ipc-sources: "none" is no source of pods`,
		"--privileged-sources=*,replay":              `--privileged-sources: "replay" is no source of pods`,
		"--replay=/r.jsonl --privileged-sources=api": "--privileged-sources: the pods of a recording are given as they were recorded",
	} {
		_, err := Parse(ConfigMux, strings.Fields(args), os.Stderr)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q in it", args, err, want)
		}
	}
	for _, service := range []Service{PLEG, NodeStatus} {
		if _, err := Parse(service, []string{"--privileged-sources=file"}, os.Stderr); err == nil {
			t.Errorf("%s takes a flag of configmux", service)
		}
	}
}

// The parent of configmux passes on exactly the given values.
func TestPrivilegesArePassedOnAsTheyWereGiven(t *testing.T) {
	var f PrivilegeFlags
	if f.Args() != nil || f.Check() != nil {
		t.Errorf("without any flags: %q, %v", f.Args(), f.Check())
	}
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.Add(set)
	if err := set.Parse([]string{"--host-pid-sources=", "--privileged-sources", "file,nobody"}); err != nil {
		t.Fatal(err)
	}
	if got, want := f.Args(), []string{
		"--host-pid-sources=",
		"--privileged-sources=file,nobody",
	}; !slices.Equal(
		got,
		want,
	) {
		t.Errorf("arguments %q, want %q", got, want)
	}
	if err := f.Check(); err == nil || !strings.Contains(err.Error(), `--privileged-sources: "nobody" is no source`) {
		t.Errorf("checked: %v, want an error with %q", err, `--privileged-sources: "nobody" is no source`)
	}
}
