package service_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/service"
	"github.com/quartet-node/quartet/internal/sockets"
)

// TestAServiceSaysItsSocketsToItsParent, by the file as it is, and starts nothing.
func TestAServiceSaysItsSocketsToItsParent(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	ask := func(config string) (code int, out, errOut string) {
		t.Helper()
		config = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" + config
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		args := []string{nodeconfig.SocketsCommand, "--config=" + file, "--hostname-override=node-1",
			"--metrics-listen=127.0.0.1:9100"}
		var stdout, stderr bytes.Buffer
		code = service.Start(t.Context(), nodeconfig.SyncLoop, args, &stdout, &stderr, nil)
		return code, stdout.String(), stderr.String()
	}
	code, out, errOut := ask("readOnlyPort: 10255\naddress: 127.0.0.1\n")
	var got []sockets.Shared
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 {
		t.Fatalf("code %d, %q, %s: %v", code, out, errOut, err)
	}
	want := []sockets.Shared{
		{Socket: sockets.Socket{Name: "metrics-listen", Address: "127.0.0.1:9100"}, Key: "syncloop-metrics-listen"},
		{Socket: sockets.Socket{Name: "tls-listen"}, Key: "syncloop-tls-listen"},
		{Socket: sockets.Socket{Name: "port"}, Key: "port"},
		{Socket: sockets.Socket{Name: "readOnlyPort", Address: "127.0.0.1:10255"}, Key: "readOnlyPort"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if code, out, errOut := ask("readOnlyPort: -1\n"); code != nodeconfig.ExitWrong || out != "" ||
		!strings.Contains(errOut, "readOnlyPort") {
		t.Errorf("with a wrong file: code %d, %q, %s", code, out, errOut)
	}
}
