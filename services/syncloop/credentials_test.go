package syncloop

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// addPlugin configures a credential provider for private.test whose plugin is the given shell script.
func (m *machine) addPlugin(script string) {
	m.t.Helper()
	dir := m.t.TempDir()
	file := filepath.Join(dir, "providers.yaml")
	text := "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- {name: robot, matchImages: [private.test], defaultCacheDuration: 1h, " +
		"apiVersion: credentialprovider.kubelet.k8s.io/v1}\n"
	for path, content := range map[string]string{file: text, filepath.Join(dir, "robot"): "#!/bin/sh\n" + script} {
		if err := os.WriteFile(path, []byte(content), 0o700); err != nil {
			m.t.Fatal(err)
		}
	}
	m.cfg.CredentialProviders = nodeconfig.CredentialProviderFlags{Config: file, BinDir: dir}
}

// TestAnImageIsPulledWithWhatAPluginHas checks that a plugin named by syncloop's flags authenticates a pull, and that
// its runs are counted and timed.
func TestAnImageIsPulledWithWhatAPluginHas(t *testing.T) {
	const image = "private.test/app:1"
	m := newMachine(t)
	m.cri.Protect(image, "robot", "robot-secret")
	m.addPlugin(`cat <<.
{"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderResponse", "cacheKeyType": "Registry",
"auth": {"private.test": {"username": "robot", "password": "robot-secret"}}}
.
`)
	providers, err := m.cfg.CredentialProviders.Read()
	if err != nil {
		t.Fatal(err)
	}
	defer m.start()()
	for i := range 2 {
		pod := newPod(types.UID(fmt.Sprintf("u%d", i)), fmt.Sprintf("web-%d", i), "main")
		pod.Spec.Containers[0].Image = image
		m.put(pod)
	}
	m.eventually("the pods are ready", m.ready("u0", "u1"))
	m.wantMetrics("the run is counted", map[string]float64{
		"kubelet_credential_provider_plugin_duration plugin_name=robot":  1,
		"kubelet_credential_provider_config_info hash=" + providers.Hash: 1,
	})
}

// TestAPluginThatFailsIsInTheStatus checks that the status of a pod names the failed plugin without which the
// image cannot be pulled.
func TestAPluginThatFailsIsInTheStatus(t *testing.T) {
	const image = "private.test/app:1"
	m := newMachine(t)
	m.cri.Protect(image, "robot", "robot-secret")
	m.addPlugin("exit 1\n")
	defer m.start()()
	pod := newPod("u1", "web", "main")
	pod.Spec.Containers[0].Image = image
	m.put(pod)
	m.eventually("the status names the plugin", func() bool {
		for _, pod := range m.pods() {
			for _, c := range pod.Status.ContainerStatuses {
				if w := c.State.Waiting; w != nil && strings.Contains(w.Message, `credential provider "robot": its plugin `+filepath.Join(m.cfg.CredentialProviders.BinDir, "robot")+` has failed with exit status 1`) {
					return true
				}
			}
		}
		return false
	})
	deadline := time.Now().Add(60 * time.Second)
	for m.metrics()["kubelet_credential_provider_plugin_errors_total plugin_name=robot"] < 1 {
		if time.Now().After(deadline) {
			t.Fatal("the failure is not counted")
		}
		<-time.After(5 * time.Millisecond)
	}
}

// TestSyncloopDoesNotStartWithoutItsPlugins checks that a missing plugin is an error of the start, as for a kubelet.
func TestSyncloopDoesNotStartWithoutItsPlugins(t *testing.T) {
	m := newMachine(t)
	m.addPlugin("")
	if err := os.Remove(filepath.Join(m.cfg.CredentialProviders.BinDir, "robot")); err != nil {
		t.Fatal(err)
	}
	err := run(t.Context(), m.cfg, m.tel)
	want := fmt.Sprintf("the configuration is wrong: %s:4: providers[0].name: there is no plugin %s: install it there, or see --image-credential-provider-bin-dir",
		m.cfg.CredentialProviders.Config, filepath.Join(m.cfg.CredentialProviders.BinDir, "robot"))
	if err == nil || err.Error() != want {
		t.Errorf("error %v\nwant %s", err, want)
	}
}
