package nodeconfig

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTracing(t *testing.T) {
	for _, tc := range []struct {
		section, want string
	}{
		{"{}", ""},
		{"{endpoint: 'localhost:4317', samplingRatePerMillion: 1000000}", ""},
		{"{endpoint: 'unix:///run/otel.sock', samplingRatePerMillion: 0}", ""},
		{"{endpoint: 'http://localhost:4317'}", "tracing.endpoint: begins with http:"},
		{"{endpoint: ''}", "tracing.endpoint: is empty"},
		{"{samplingRatePerMillion: -1}", "tracing.samplingRatePerMillion: is -1, must be from 0 to 1000000"},
		{"{samplingRatePerMillion: 1000001}", "tracing.samplingRatePerMillion: is 1000001"},
	} {
		file := filepath.Join(t.TempDir(), "kubelet.yaml")
		content := fmt.Sprintf(
			"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ntracing: %s\n",
			tc.section,
		)
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := Parse(PLEG, []string{"--hostname-override", "node-1", "--config", file}, os.Stderr)
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("%s: %v", tc.section, err)
		case tc.want == "" && cfg.Kubelet.Tracing == nil:
			t.Errorf("%s: there is no tracing", tc.section)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s: %v, want %q", tc.section, err, tc.want)
		}
	}
}
