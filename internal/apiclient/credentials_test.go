package apiclient_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// TestCredentialsOfEachKindAreSent: credentials from a file, whose token is replaced, and from a program that prints
// them.
func TestCredentialsOfEachKindAreSent(t *testing.T) {
	url, dir, requests := server(t)
	token, program := filepath.Join(dir, "token"), filepath.Join(dir, "credentials")
	if err := os.WriteFile(token, []byte("of-a-file"), 0o600); err != nil {
		t.Fatal(err)
	}
	script := `#!/bin/sh
echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"of-a-program-'$1'"}}'
`
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	for user, want := range map[string]string{
		"tokenFile: " + token: "Bearer of-a-file",
		"exec: {apiVersion: client.authentication.k8s.io/v1, command: " + program + ", args: [node], interactiveMode: Never}": "Bearer of-a-program-node",
	} {
		kubeconfig := write(t, "server: '"+url+"', certificate-authority: "+dir+"/ca.crt", user)
		client, err := apiclient.New(
			apiclient.Config{Kubeconfig: kubeconfig, Service: nodeconfig.NodeStatus, ContentType: "application/json"},
		)
		if err != nil {
			t.Fatal(err)
		}
		if err := client.Core.Get().Resource("nodes").Name("node-1").Do(t.Context()).Into(&v1.Node{}); err != nil {
			t.Fatal(err)
		}
		if got := (<-requests).Header.Get("Authorization"); got != want {
			t.Errorf("sent %q, want %q", got, want)
		}
		client.Close()
	}
}

// TestAProgramOfCredentialsThatFailsIsNamed checks the error, which must not contain the output of the program, because
// it may be a secret.
func TestAProgramOfCredentialsThatFailsIsNamed(t *testing.T) {
	url, dir, _ := server(t)
	kubeconfig := write(
		t,
		"server: '"+url+"', certificate-authority: "+dir+"/ca.crt",
		"exec: {apiVersion: client.authentication.k8s.io/v1, command: "+dir+"/none, interactiveMode: Never}",
	)
	client, err := apiclient.New(
		apiclient.Config{Kubeconfig: kubeconfig, Service: nodeconfig.NodeStatus, ContentType: "application/json"},
	)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	err = client.Core.Get().Resource("nodes").Name("node-1").Do(t.Context()).Into(&v1.Node{})
	if err == nil || !strings.Contains(err.Error(), dir+"/none") {
		t.Errorf("got %v, want the program's name", err)
	}
}
