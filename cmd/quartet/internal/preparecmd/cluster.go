package preparecmd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/quartet-node/quartet/internal/statedir"
)

const (
	// clusterMode and credentialMode let the other services read the credentials of the node by their group.
	clusterMode, credentialMode = 0o750, 0o640
	// pkiDir is the directory of the node's certificates, in the state directory and in that of the cluster.
	pkiDir = "pki"
	// kubeconfigFile is the kubeconfig that a node writes when it joins, in the same two directories.
	kubeconfigFile = "kubeconfig"
	// clientFiles are the names of the certificate of a node that has joined; its serving certificate is syncloop's.
	clientFiles = "kubelet-client-*"
)

// giveCluster makes the directory of the cluster's credentials. A node that has joined as root has them in the state
// directory: they are copied, and a link is left in the place of the kubeconfig.
func (u unit) giveCluster() error {
	cluster := filepath.Join(u.stateDir, clusterDir)
	pki := filepath.Join(cluster, pkiDir)
	if err := (directory{path: cluster, uid: u.uid, gid: u.gid, mode: clusterMode}).make(); err != nil {
		return err
	}
	// The user of the unit may have put a link there.
	if info, err := os.Lstat(pki); err == nil && !info.IsDir() {
		return fmt.Errorf("%s is no directory: remove it", pki)
	}
	if err := os.Mkdir(pki, clusterMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	joined := filepath.Join(u.stateDir, kubeconfigFile)
	info, err := os.Lstat(joined)
	if err != nil || !info.Mode().IsRegular() {
		return errors.Join(ignoreMissing(err), chownAll(cluster, u.uid, u.gid))
	}
	if err := u.copyClient(pki); err != nil {
		return err
	}
	config, err := clientcmd.LoadFromFile(joined)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig of the node: %w", err)
	}
	for _, user := range config.AuthInfos {
		user.ClientCertificate = moved(user.ClientCertificate, filepath.Join(u.stateDir, pkiDir), pki)
		user.ClientKey = moved(user.ClientKey, filepath.Join(u.stateDir, pkiDir), pki)
	}
	text, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("writing the kubeconfig of the node: %w", err)
	}
	if err := statedir.WriteFileAtomic(filepath.Join(cluster, kubeconfigFile), text, credentialMode); err != nil {
		return err
	}
	if err := chownAll(cluster, u.uid, u.gid); err != nil {
		return err
	}
	link := filepath.Join(u.stateDir, "."+kubeconfigFile+".link")
	if err := statedir.RemoveFile(link); err != nil {
		return err
	}
	return errors.Join(os.Symlink(filepath.Join(clusterDir, kubeconfigFile), link), os.Rename(link, joined))
}

// copyClient copies the certificate of the node, with its link.
func (u unit) copyClient(to string) error {
	files, err := filepath.Glob(filepath.Join(u.stateDir, pkiDir, clientFiles))
	if err != nil {
		return err
	}
	for _, file := range files {
		into := filepath.Join(to, filepath.Base(file))
		if target, err := os.Readlink(file); err == nil {
			if err := statedir.RemoveFile(into); err != nil {
				return err
			}
			if err := os.Symlink(filepath.Base(target), into); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			continue
		}
		content, err := os.ReadFile(filepath.Clean(file))
		if err != nil {
			return err
		}
		if err := statedir.WriteFileAtomic(into, content, credentialMode); err != nil {
			return err
		}
	}
	return nil
}

// moved returns the path of a file after its directory was moved.
func moved(path, from, to string) string {
	if name, ok := strings.CutPrefix(path, from+"/"); ok {
		return filepath.Join(to, name)
	}
	return path
}
