package nodeconfig

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestImageFieldsHaveTheKubeletsDefaults: one default depends on another field.
func TestImageFieldsHaveTheKubeletsDefaults(t *testing.T) {
	k := parse(t, SyncLoop).Kubelet
	if *k.ImageGCHighThresholdPercent != 85 || *k.ImageGCLowThresholdPercent != 80 ||
		k.ImageMinimumGCAge.Duration != 2*time.Minute ||
		k.ImageMaximumGCAge.Duration != 0 {
		t.Errorf(
			"from %d %% to %d %%, from %s to %s",
			*k.ImageGCHighThresholdPercent,
			*k.ImageGCLowThresholdPercent,
			k.ImageMinimumGCAge.Duration,
			k.ImageMaximumGCAge.Duration,
		)
	}
	for content, serial := range map[string]bool{"": true, "maxParallelImagePulls: 1\n": true, "maxParallelImagePulls: 2\n": false, "serializeImagePulls: false\n": false} {
		file := filepath.Join(t.TempDir(), "kubelet.yaml")
		if err := os.WriteFile(
			file,
			[]byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"+content),
			0o600,
		); err != nil {
			t.Fatal(err)
		}
		if got := *parse(t, SyncLoop, "--config", file).Kubelet.SerializeImagePulls; got != serial {
			t.Errorf("%q: serializeImagePulls is %v, want %v", content, got, serial)
		}
	}
}

// TestImageFieldsAreActedOn: no service reports them as fields without an effect.
func TestImageFieldsAreActedOn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	content := `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 50
imageMinimumGCAge: 1m
imageMaximumGCAge: 24h
`
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if cfg := parse(t, SyncLoop, "--config", file); len(cfg.Unsupported) > 0 {
		t.Errorf("not acted on: %q", cfg.Unsupported)
	}
}
