package apiclient

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// load reads a kubeconfig and validates the parts in use: the current context, its cluster and its user. It does not
// pass on errors of the parsers that quote the file.
func load(path string) (*clientcmdapi.Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	content, err := clientcmd.Load(data)
	if err != nil {
		return nil, fmt.Errorf(
			"%s%s: is no kubeconfig (kind Config of apiVersion v1, in YAML or JSON) or has a field of a wrong type; the values of -data fields are base64",
			path,
			lineOf(err),
		)
	}
	for _, cluster := range content.Clusters {
		cluster.LocationOfOrigin = path
	}
	for _, user := range content.AuthInfos {
		user.LocationOfOrigin = path
	}
	// Relative paths in a kubeconfig are relative to the file, as everywhere in Kubernetes.
	if err := clientcmd.ResolveLocalPaths(content); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := check(content); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return content, nil
}

// lineInText matches the line number in an error of the YAML parser.
var lineInText = regexp.MustCompile(`line (\d+)`)

// lineOf returns ":LINE" if an error names a line, and an empty string otherwise.
func lineOf(err error) string {
	if match := lineInText.FindStringSubmatch(err.Error()); match != nil {
		return ":" + match[1]
	}
	return ""
}

// check returns the first validation error, with its field.
func check(content *clientcmdapi.Config) error {
	if content.CurrentContext == "" {
		return errors.New("current-context: is not set: name the context to use")
	}
	context := content.Contexts[content.CurrentContext]
	if context == nil {
		return fmt.Errorf("current-context: there is no context %q: name one of contexts", content.CurrentContext)
	}
	cluster, user := content.Clusters[context.Cluster], content.AuthInfos[context.AuthInfo]
	if cluster == nil {
		return fmt.Errorf(
			"contexts[%s].cluster: there is no cluster %q: name one of clusters",
			content.CurrentContext,
			context.Cluster,
		)
	}
	if user == nil {
		return fmt.Errorf(
			"contexts[%s].user: there is no user %q: name one of users",
			content.CurrentContext,
			context.AuthInfo,
		)
	}
	if err := checkCluster(cluster); err != nil {
		return fmt.Errorf("clusters[%s].%w", context.Cluster, err)
	}
	if err := checkUser(user); err != nil {
		return fmt.Errorf("users[%s].%w", context.AuthInfo, err)
	}
	return nil
}

// proxySchemes lists the proxy schemes that client-go supports.
var proxySchemes = []string{"http", "https", "socks5"}

func checkCluster(cluster *clientcmdapi.Cluster) error {
	server, err := url.Parse(cluster.Server)
	switch {
	case err != nil || server.Hostname() == "" || (server.Scheme != "https" && server.Scheme != "http"):
		return errors.New("server: must be an https:// URL with a host, for example https://api.example:6443")
	case server.User != nil:
		return errors.New("server: must not have a user or a password in it: put them into users")
	case server.Scheme == "http" && (!isLoopback(server.Hostname()) || cluster.ProxyURL != ""):
		return fmt.Errorf(
			"server: %q would be reached without TLS, so that anybody on the way could read and change everything: use https://",
			cluster.Server,
		)
	}
	if cluster.ProxyURL != "" {
		proxy, err := url.Parse(cluster.ProxyURL)
		if err != nil || proxy.Host == "" || !slices.Contains(proxySchemes, proxy.Scheme) {
			return errors.New(
				"proxy-url: must be a URL of http, https or socks5 with a host, for example http://proxy.example:3128",
			)
		}
	}
	field, ca, err := material("certificate-authority", cluster.CertificateAuthority, cluster.CertificateAuthorityData)
	if err != nil {
		return err
	}
	if ca != nil && !x509.NewCertPool().AppendCertsFromPEM(ca) {
		return fmt.Errorf("%s: has no certificate in PEM", field)
	}
	return nil
}

// isLoopback reports whether a host is this machine.
func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || (err == nil && ip.IsLoopback())
}

func checkUser(user *clientcmdapi.AuthInfo) error {
	certificateField, certificate, err := material(
		"client-certificate",
		user.ClientCertificate,
		user.ClientCertificateData,
	)
	if err != nil {
		return err
	}
	keyField, key, err := material("client-key", user.ClientKey, user.ClientKeyData)
	switch {
	case err != nil:
		return err
	case certificate == nil && key == nil:
		return nil
	case certificate == nil:
		return fmt.Errorf("%s: needs a client-certificate beside it", keyField)
	case key == nil:
		return fmt.Errorf("%s: needs a client-key beside it", certificateField)
	}
	if _, err := tls.X509KeyPair(certificate, key); err != nil {
		return fmt.Errorf("%s: does not go with %s: %w", certificateField, keyField, err)
	}
	return nil
}

// material returns the content of a field, which is either in a file or inline in FIELD-data, which takes precedence.
// It is nil if the field is not set.
func material(field, file string, data []byte) (name string, content []byte, err error) {
	if len(data) > 0 {
		return field + "-data", data, nil
	}
	if file == "" {
		return field, nil, nil
	}
	content, err = os.ReadFile(file)
	if err != nil {
		return field, nil, fmt.Errorf("%s: %w: name a file that exists and may be read", field, err)
	}
	return field, content, nil
}
