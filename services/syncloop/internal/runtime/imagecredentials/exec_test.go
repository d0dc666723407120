package imagecredentials_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	kubeletconfigv1 "k8s.io/kubelet/config/v1"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/imagecredentials"
	"github.com/quartet-node/quartet/test/eventually"
)

// onMachine returns a rig with one plugin, a shell script with this text, and the folder of the plugin.
func onMachine(t *testing.T, script string, change ...func(*kubeletconfigv1.CredentialProvider)) (*rig, string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ecr"), []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	r, provider := newRig(t), withToken(byToken, false)
	r.end()
	for _, f := range change {
		f(&provider)
	}
	providers := nodeconfig.CredentialProviders{Providers: []kubeletconfigv1.CredentialProvider{provider}, BinDir: dir}
	r.start(imagecredentials.Config{Providers: providers, Run: imagecredentials.Exec, Accounts: r, Clock: r.clock})
	return r, dir
}

// TestAPluginOfThisMachine checks that a plugin gets its arguments, its environment and the request, and that its
// response is used.
func TestAPluginOfThisMachine(t *testing.T) {
	t.Setenv("FROM_SYNCLOOP", "inherited")
	t.Setenv("OVERRIDDEN", "by nobody")
	script := `cd "$(dirname "$0")"; cat >request; echo "$* $FROM_SYNCLOOP $OVERRIDDEN" >given; echo "noise" >&2; cat answer`
	r, dir := onMachine(t, script, func(p *kubeletconfigv1.CredentialProvider) {
		p.Args = []string{"get", "two words"}
		p.Env = []kubeletconfigv1.ExecEnvVar{{Name: "OVERRIDDEN", Value: "by env"}}
	})
	if err := os.WriteFile(filepath.Join(dir, "answer"), response("Registry", "1h", "a.test"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.want(newPod("u1", "robot"), "a.test/web", "a.test", "")
	for file, want := range map[string]string{
		"request": `{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"a.test/web",` +
			`"serviceAccountToken":"hunter2-u1-sa-1-registry","serviceAccountAnnotations":{"region":"north"}}` + "\n",
		"given": "get two words inherited by env\n",
	} {
		if got, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(got) != want {
			t.Errorf("%s: %q, error %v, want %q", file, got, err, want)
		}
	}
	if r.logText() != "" {
		t.Errorf("told is %s, want an empty text", r.logText())
	}
}

// TestAPluginThatDoesNotAnswerWell checks that the failure is reported with its cause and without a secret.
func TestAPluginThatDoesNotAnswerWell(t *testing.T) {
	const version = `"apiVersion": "credentialprovider.kubelet.k8s.io/v1", `
	for name, c := range map[string]struct {
		script, want, log string
		ran               bool // the plugin itself has succeeded
	}{
		"it fails":      {script: "echo the role may not >&2; exit 3", want: "has failed with exit status 3: see its output in the log of syncloop", log: "the role may not"},
		"it is verbose": {script: "cat >&2; echo $SECRET >&2; exit 3", want: "has failed with exit status 3: see its output in the log of syncloop", log: "[hidden]"},
		"it traces":     {script: "set -x\necho '{\"password\": \"hunter2\"}'; exit 1", want: "has failed with exit status 1: see its output in the log of syncloop", log: "[hidden]"},
		"it crashes":    {script: "kill -KILL $$", want: "has failed with signal: killed: see its output in the log of syncloop"},
		"nothing":       {script: "true", want: "has not written valid JSON to its standard output: it must write exactly one CredentialProviderResponse", ran: true},
		"garbage":       {script: "echo hunter2", want: "has not written valid JSON to its standard output: it must write exactly one CredentialProviderResponse", ran: true},
		"two":           {script: "echo '{}{}'", want: "has not written valid JSON to its standard output: it must write exactly one CredentialProviderResponse", ran: true},
		"a list":        {script: "echo '[]'", want: "has not written valid JSON to its standard output: it must write exactly one CredentialProviderResponse", ran: true},
		"another version": {script: `echo '{"apiVersion": "credentialprovider.kubelet.k8s.io/v1beta1"}'`, ran: true,
			want: "has returned an apiVersion other than the requested credentialprovider.kubelet.k8s.io/v1: set the apiVersion that it supports in its configuration"},
		"another kind": {script: `echo '{` + version + `"kind": "hunter2"}'`, want: "has returned a kind other than CredentialProviderResponse", ran: true},
		"an unknown field": {script: `echo '{` + version + `"kind": "CredentialProviderResponse", "cacheKeyType": "Image", "hunter2": 1}'`, ran: true,
			want: "has returned a CredentialProviderResponse with unknown or duplicate fields, or fields of a wrong type"},
		"a wrong type": {script: `echo '{` + version + `"kind": "CredentialProviderResponse", "cacheKeyType": "Image", "auth": "hunter2"}'`, ran: true,
			want: "has returned a CredentialProviderResponse with unknown or duplicate fields, or fields of a wrong type"},
		"a wrong key": {script: `echo '{` + version + `"kind": "CredentialProviderResponse", "cacheKeyType": "hunter2"}'`, ran: true,
			want: "has returned a cacheKeyType other than Image, Registry and Global"},
		"too much": {script: "while echo hunter2hunter2hunter2hunter2hunter2hunter2hunter2hunter2hunter2; do :; done", want: "has written more than 1024 KiB to its standard output"},
	} {
		t.Run(name, func(t *testing.T) {
			r, dir := onMachine(t, c.script, func(p *kubeletconfigv1.CredentialProvider) {
				p.Env = []kubeletconfigv1.ExecEnvVar{{Name: "SECRET", Value: hidden + "-env"}}
			})
			plugin := filepath.Join(dir, "ecr")
			r.want(newPod("u1", "robot"), "a.test/web", "", fmt.Sprintf("credential provider %q: its plugin %s %s", "ecr", plugin, c.want))
			if !strings.Contains(r.logText(), c.log) || (r.failed()["ecr"] == 1) == c.ran {
				t.Errorf("counted as failed: %d, log\n%s", r.failed()["ecr"], r.logText())
			}
		})
	}
}

func TestAPluginThatIsGone(t *testing.T) {
	r, dir := onMachine(t, "true")
	if err := os.Remove(filepath.Join(dir, "ecr")); err != nil {
		t.Fatal(err)
	}
	r.want(newPod("u1", ""), "a.test/web", "", fmt.Sprintf("credential provider %q: its plugin %[2]s cannot be run: fork/exec %[2]s: no such file or directory", "ecr", filepath.Join(dir, "ecr")))
}

// TestAPluginIsKilledWithItsChildren lets a plugin exceed its time limit.
func TestAPluginIsKilledWithItsChildren(t *testing.T) {
	dir := t.TempDir()
	script, file := filepath.Join(dir, "ecr"), filepath.Join(dir, "child")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nsleep 1000 &\necho $! >"+file+".new; mv "+file+".new "+file+"\nwait\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	late, ended := errors.New("it takes too long"), make(chan error)
	go func() {
		_, err := imagecredentials.Exec(ctx, imagecredentials.Command{Path: script})
		ended <- err
	}()
	var child int
	eventually.That(t, "it has a child", func() bool {
		text, err := os.ReadFile(file)
		if err != nil {
			return false
		}
		child, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil
	})
	cancel(late)
	if err := <-ended; !errors.Is(err, late) {
		t.Errorf("error = %v, want %v", err, late)
	}
	eventually.That(t, "the child is gone", func() bool { return gone(child) })
}

// gone reports whether a process has ended, even if it has not been waited for.
func gone(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err != nil || strings.Contains(string(status), "State:\tZ")
}

// TestALongErrorIsCutAtALine checks that only the last complete lines are logged: an incomplete line may
// contain a part of a secret.
func TestALongErrorIsCutAtALine(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "ecr")
	if err := os.WriteFile(script, []byte("#!/bin/sh\ni=0; while [ $i -lt 1000 ]; do i=$((i+1)); echo \"line $i.\" >&2; done; exit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	out, err := imagecredentials.Exec(t.Context(), imagecredentials.Command{Path: script})
	if err == nil || !strings.HasPrefix(out.Stderr, "line ") || !strings.HasSuffix(out.Stderr, "line 1000.\n") || len(out.Stderr) > 4<<10 || len(out.Stderr) < 3<<10 {
		t.Errorf("%d bytes, %q, error %v", len(out.Stderr), out.Stderr[:min(40, len(out.Stderr))], err)
	}
}
