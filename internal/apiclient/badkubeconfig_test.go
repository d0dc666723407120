package apiclient_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// refused returns the error of a refused kubeconfig. It names the file and contains no secret.
func refused(t *testing.T, kubeconfig string) string {
	t.Helper()
	_, err := apiclient.New(apiclient.Config{Kubeconfig: kubeconfig, Service: nodeconfig.ConfigMux, ContentType: protobuf})
	if err == nil {
		t.Error("New() accepted an invalid kubeconfig, want an error")
		return ""
	}
	if !strings.Contains(err.Error(), kubeconfig) || strings.Contains(err.Error(), secret) {
		t.Errorf("says %q, want the file in it and no secret", err)
	}
	return err.Error()
}

func TestAWrongClusterOrUserIsReportedByItsField(t *testing.T) {
	dir := t.TempDir()
	pair(t, dir, "a")
	pair(t, dir, "b")
	if err := os.WriteFile(filepath.Join(dir, "junk"), []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	const good = "server: 'https://api.example'"
	for _, tc := range []struct{ cluster, user, want string }{
		{"server: 'https://u:" + secret + "@api.example'", "token: a", "clusters[one].server: must not have a user or a password"},
		{"server: 'https://u:" + secret + " @api.example'", "token: a", "clusters[one].server: must be an https:// URL"},
		{good + ", proxy-url: 'ftp://u:" + secret + "@proxy.example'", "token: a", "clusters[one].proxy-url: must be a URL of"},
		{good + ", proxy-url: 'http://u:" + secret + " @proxy.example'", "token: a", "clusters[one].proxy-url: must be a URL of"},
		{"server: 'http://127.0.0.1:8080', proxy-url: 'http://proxy.example'", "token: a", "clusters[one].server: "},
		{good + ", certificate-authority: " + dir + "/none", "token: a", "clusters[one].certificate-authority: open " + dir + "/none"},
		{good + ", certificate-authority: " + dir + "/junk", "token: a", "clusters[one].certificate-authority: has no certificate in PEM"},
		{good + ", certificate-authority-data: aHVudGVyMg==", "token: a", "clusters[one].certificate-authority-data: has no certificate in PEM"},
		{good, "client-certificate: " + dir + "/a.crt", "users[node].client-certificate: needs a client-key"},
		{good, "client-key: " + dir + "/a.key", "users[node].client-key: needs a client-certificate"},
		{good, "client-certificate: " + dir + "/a.crt, client-key: " + dir + "/none", "users[node].client-key: open " + dir + "/none"},
		{good, "client-certificate: " + dir + "/a.crt, client-key: " + dir + "/b.key", "users[node].client-certificate: does not go with client-key: "},
		{good, "client-certificate: " + dir + "/a.crt, client-key: " + dir + "/junk", "users[node].client-certificate: does not go with client-key: "},
		{good, "token: a, username: b, password: " + secret, "more than one authentication method"},
		{good, "exec: {command: x}", "apiVersion must be specified for node"},
	} {
		if got := refused(t, write(t, tc.cluster, tc.user)); !strings.Contains(got, tc.want) {
			t.Errorf("%s; %s: says %q, want %q in it", tc.cluster, tc.user, got, tc.want)
		}
	}
}

func TestAFileThatIsNoKubeconfig(t *testing.T) {
	const head = "apiVersion: v1\nkind: Config\n"
	for content, want := range map[string]string{
		secret:                              ": is no kubeconfig",
		"apiVersion: v1\nusers: *" + secret: ": is no kubeconfig",
		"a: b\n\t" + secret:                 ":2: is no kubeconfig",
		head + "users: " + secret:           ": is no kubeconfig",
		"apiVersion: v1\nkind: " + secret:   ": is no kubeconfig",
		head + "users: [{name: a, user: {client-key-data: '" + secret + "!'}}]": ": is no kubeconfig",
		"{}":                        "current-context: is not set",
		head:                        "current-context: is not set",
		head + "current-context: x": `current-context: there is no context "x"`,
		head + "current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]":                                                        `contexts[x].cluster: there is no cluster "c"`,
		head + "current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\nclusters: [{name: c, cluster: {server: 'https://c'}}]": `contexts[x].user: there is no user "u"`,
	} {
		path := filepath.Join(t.TempDir(), "kubeconfig")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := refused(t, path); !strings.Contains(got, want) {
			t.Errorf("%q: says %q, want %q in it", content, got, want)
		}
	}
	_, err := apiclient.New(apiclient.Config{Kubeconfig: filepath.Join(t.TempDir(), "none")})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want that the file is not there", err)
	}
}
