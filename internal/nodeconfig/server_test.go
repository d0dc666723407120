package nodeconfig

import (
	"crypto/tls"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

func TestTheAuthenticatedAPIHasTheKubeletsDefaults(t *testing.T) {
	k := parse(t, SyncLoop).Kubelet
	if !*k.EnableServer || k.Port != 10250 || *k.Authentication.Anonymous.Enabled || !*k.Authentication.Webhook.Enabled ||
		k.Authorization.Mode != kubeletconfigv1beta1.KubeletAuthorizationModeWebhook {
		t.Errorf("got %+v and %+v on port %d", k.Authentication, k.Authorization, k.Port)
	}
	if got := k.Authentication.Webhook.CacheTTL.Duration.String() + " " + k.Authorization.Webhook.CacheAuthorizedTTL.Duration.String() + " " +
		k.Authorization.Webhook.CacheUnauthorizedTTL.Duration.String(); got != "2m0s 5m0s 30s" {
		t.Errorf("answers are kept for %s, want %q", got, "2m0s 5m0s 30s")
	}
}

// TestWhereTheAPIsAreServed: the authenticated one at the address of the file, or where an API server reaches it; the
// other one always on this machine only.
func TestWhereTheAPIsAreServed(t *testing.T) {
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	noError(t, os.WriteFile(kubeconfig, []byte("x"), 0o600))
	for _, c := range []struct {
		address              string
		member               bool
		wantAPI, wantReading string
	}{
		{"", false, "127.0.0.1", "127.0.0.1"},
		{"", true, "0.0.0.0", "127.0.0.1"},
		{"127.0.0.2", true, "127.0.0.2", "127.0.0.2"},
		{"192.0.2.7", true, "192.0.2.7", "127.0.0.1"},
		{"::", false, "::", "127.0.0.1"},
	} {
		var args []string
		if c.address != "" {
			file := filepath.Join(dir, "kubelet.yaml")
			noError(
				t,
				os.WriteFile(
					file,
					[]byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\naddress: '"+c.address+"'\n"),
					0o600,
				),
			)
			args = append(args, "--config", file)
		}
		if c.member {
			args = append(args, "--kubeconfig", kubeconfig)
		}
		cfg := parse(t, SyncLoop, args...)
		if got := ReadOnlyAddress(&cfg.Kubelet); cfg.APIAddress != c.wantAPI || cfg.Kubelet.Address != c.wantAPI ||
			got != c.wantReading {
			t.Errorf(
				"address %q, member %v: got %s and %s, want %s and %s",
				c.address,
				c.member,
				cfg.APIAddress,
				got,
				c.wantAPI,
				c.wantReading,
			)
		}
	}
}

// TestAnUnauthenticatedAPIIsServedOnLoopbackOnly: without authentication and authorization the API is served on the
// loopback interface only.
func TestAnUnauthenticatedAPIIsServedOnLoopbackOnly(t *testing.T) {
	const open = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nauthentication: {anonymous: {enabled: true}}\nauthorization: {mode: AlwaysAllow}\n"
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	for rest, fine := range map[string]bool{"": true, "address: 0.0.0.0": false, "address: '::1'": true, "address: 0.0.0.0\nenableServer: false": true} {
		noError(t, os.WriteFile(file, []byte(open+rest), 0o600))
		_, err := Parse(SyncLoop, []string{"--hostname-override=node-1", "--config", file}, io.Discard)
		if (err == nil) != fine {
			t.Errorf("%q: Parse() error = %v, want success: %t", rest, err, fine)
		}
		if err != nil &&
			(!strings.Contains(err.Error(), "address to 127.0.0.1") || !strings.Contains(err.Error(), "--allow-unauthenticated-api")) {
			t.Errorf("%q: %v does not say what to do", rest, err)
		}
		if cfg, err := Parse(
			SyncLoop,
			[]string{"--hostname-override=node-1", "--config", file, "--allow-unauthenticated-api"},
			io.Discard,
		); err != nil ||
			(cfg.UnauthenticatedAPI() == "") != fine {
			t.Errorf("%q: it is allowed: %v; everybody is served on %q", rest, err, cfg.UnauthenticatedAPI())
		}
		if _, err := Parse(PLEG, []string{"--hostname-override=node-1", "--config", file}, io.Discard); err != nil {
			t.Errorf("%q: pleg does not serve it, and says %v", rest, err)
		}
	}
}

func TestNamesOfTLS(t *testing.T) {
	suites, err := CipherSuites(
		[]string{"TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"},
	)
	noError(t, err)
	if want := []uint16{
		tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
	}; !slices.Equal(
		suites,
		want,
	) {
		t.Errorf("got %v, want %v", suites, want)
	}
	for name, want := range map[string]uint16{"": tls.VersionTLS12, "VersionTLS13": tls.VersionTLS13} {
		if got, err := TLSVersion(name); got != want || err != nil {
			t.Errorf("%q: TLSVersion() = %d, %v, want %d", name, got, err, want)
		}
	}
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestCurvesAndQueriesOfLogs(t *testing.T) {
	decoded, errs := Decode(
		"f",
		[]byte(head+"tlsCurvePreferences: [29, 4588]\nenableSystemLogQuery: true\noomScoreAdj: 5\n"),
	)
	curves, err := Curves(decoded.Kubelet.TLSCurvePreferences)
	if len(errs) > 0 || err != nil || !slices.Equal(curves, []tls.CurveID{tls.X25519, tls.X25519MLKEM768}) ||
		len(decoded.unsupported(SyncLoop)) > 0 {
		t.Errorf("Curves() = %v, %v, %v, want none, %v and no unsupported",
			curves, errs, err, []tls.CurveID{tls.X25519, tls.X25519MLKEM768})
	}
	for fields, want := range map[string]string{
		"tlsCurvePreferences: [29, 1]":                              "f:3: tlsCurvePreferences[1]: there is no mechanism of key exchange 1",
		"enableSystemLogQuery: true\nenableSystemLogHandler: false": "f:3: enableSystemLogQuery: needs enableSystemLogHandler",
		"oomScoreAdj: -1001":                                        "f:3: oomScoreAdj: is -1001",
	} {
		if _, errs := Decode("f", []byte(head+fields)); len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), want) {
			t.Errorf("%s: Decode(f) = %v, want exactly one and errs[0].Error beginning with %q", fields, errs, want)
		}
	}
}

// TestCipherSuitesWithoutHTTP2 checks that a list with which the HTTP API cannot be served is refused at the start.
func TestCipherSuitesWithoutHTTP2(t *testing.T) {
	const header = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	for rest, fine := range map[string]bool{
		"tlsCipherSuites: [TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384]":                                        false,
		"tlsCipherSuites: [TLS_AES_128_GCM_SHA256]":                                                       false,
		"tlsCipherSuites: [TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]": true,
		"tlsCipherSuites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]":                                      true,
		"tlsCipherSuites: [TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384]\ntlsMinVersion: VersionTLS13":           true,
		"tlsCipherSuites: [TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384]\nenableServer: false":                   true,
		"tlsCipherSuites: []": true,
	} {
		noError(t, os.WriteFile(file, []byte(header+rest), 0o600))
		_, err := Parse(SyncLoop, []string{"--hostname-override=node-1", "--config", file}, io.Discard)
		if (err == nil) != fine {
			t.Errorf("%q: Parse() error = %v, want success: %t", rest, err, fine)
		}
		if err != nil && !strings.Contains(err.Error(), "tlsCipherSuites: leaves HTTP/2 without a cipher suite") {
			t.Errorf("%q: %v does not name the field", rest, err)
		}
	}
}
