"""The applications that are started, and their images: layers of Debian's packages on one Debian, made once.

Each image has three layers: a minimal Debian, which all share; what the application's packages add to it; and the
application's own files.
"""

import dataclasses
import hashlib
import io
import json
import pathlib
import shutil
import tarfile

from layout import Layout, entry, gzipped, plain
from rig import run

# Goes up where other bytes are made of the same packages.
VERSION = 3
SUITE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
# The time of everything that is younger: of what the installation itself writes.
EPOCH = "1700000000"
PORT = 18080
TAG = "1"

NGINX = f"""daemon off; error_log stderr;
events {{}}
http {{ access_log off; server {{ listen 127.0.0.1:{PORT}; root /srv; }} }}
"""
PYTHON = f"""import io
from wsgiref.simple_server import make_server
import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import JsonResponse
from django.urls import path
import numpy
import pandas

settings.configure(SECRET_KEY="bench", ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, DEBUG=False)
TABLE = pandas.DataFrame({{"squares": numpy.arange(1000) ** 2}})
urlpatterns = [path("", lambda request: JsonResponse({{"mean": float(TABLE.squares.mean())}}))]
make_server("127.0.0.1", {PORT}, get_wsgi_application()).serve_forever()
"""
# WordPress before its installation: each page looks at the database, and leads to the form of the installation. The
# database has no users to look at.
WORDPRESS_START = """#!/bin/sh
mkdir -p /run/mysqld /run/lock
/usr/sbin/mariadbd --user=root --skip-networking --skip-grant-tables --socket=/run/mysqld/mysqld.sock &
until [ -S /run/mysqld/mysqld.sock ]; do sleep 0.02; done
APACHE_ULIMIT_MAX_FILES=true exec /usr/sbin/apache2ctl -D FOREGROUND
"""
WORDPRESS_SITE = f"""ServerName 127.0.0.1
<VirtualHost 127.0.0.1:{PORT}>
  DocumentRoot /usr/share/wordpress
  <Directory /usr/share/wordpress>
    DirectoryIndex index.php
    Require all granted
  </Directory>
</VirtualHost>
"""
WORDPRESS_CONFIG = """<?php
define('DB_NAME', 'wordpress');
define('DB_USER', 'wordpress');
define('DB_PASSWORD', '');
define('DB_HOST', 'localhost:/run/mysqld/mysqld.sock');
define('WP_CONTENT_DIR', '/var/lib/wordpress/wp-content');
"""
# A log of 96 MiB would be copied by the first write.
SMALL_LOG = """mkdir -p "$1/etc/mysql/conf.d" && printf '[mysqld]\\ninnodb_log_file_size=4M\\n' >"$1/etc/mysql/conf.d/small.cnf"
"""


@dataclasses.dataclass
class App:
    """An application: its packages, its own files, its command, and the line or the answer that says that it is up."""

    name: str
    packages: list
    command: list
    files: dict = dataclasses.field(default_factory=dict)
    # What the shell does in the tree, `$1`, before the packages are installed.
    before: str = ""
    # A line of its output; without one, an answer over HTTP.
    line: str = ""


APPS = [
    App("nginx", ["nginx-light"], ["/usr/sbin/nginx", "-c", "/srv/nginx.conf"],
        {"srv/nginx.conf": NGINX, "srv/index.html": "<p>up</p>\n"}),
    App("python", ["python3-django", "python3-pandas"], ["/usr/bin/python3", "/srv/app.py"], {"srv/app.py": PYTHON}),
    App("postgres", ["postgresql-15"],
        ["/usr/bin/setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups",
         "/usr/lib/postgresql/15/bin/postgres", "-D", "/var/lib/postgresql/15/main", "-c",
         "config_file=/etc/postgresql/15/main/postgresql.conf", "-c", "ssl=off", "-p", str(PORT), "-k", "/tmp"],
        {"srv/README": "PostgreSQL, as its package has it\n"}, line="ready to accept connections"),
    App("wordpress", ["wordpress", "apache2", "libapache2-mod-php", "php-mysql", "mariadb-server"],
        ["/bin/sh", "/srv/start.sh"],
        {"srv/start.sh": WORDPRESS_START, "etc/apache2/ports.conf": f"Listen 127.0.0.1:{PORT}\n",
         "etc/apache2/sites-enabled/000-default.conf": WORDPRESS_SITE,
         "etc/wordpress/config-default.php": WORDPRESS_CONFIG,
         "var/lib/mysql/wordpress/db.opt": "default-character-set=utf8mb4\n"},
        before=SMALL_LOG),
]


def make(base):
    """The images as an OCI layout in `base`, a tag of each application's name; what is known of them by name."""
    place, noted = base / "images", base / "images/known.json"
    wanted = {"version": VERSION, "apps": [dataclasses.asdict(app) for app in APPS]}
    if noted.exists() and (known := json.loads(noted.read_text()))["wanted"] == wanted:
        return place / "layout", known["images"]
    print("  making the images, once", flush=True)
    shutil.rmtree(place, ignore_errors=True)
    (place / "layers").mkdir(parents=True)
    made = Layout(place / "layout", run("dpkg", "--print-architecture").strip())
    debian = _install(place / "layers/debian.tar", [])
    below, lowest = _known(debian), gzipped(plain(debian), 6)
    images = {}
    for app in APPS:
        whole = _install(place / f"{app.name}.tar", app.packages, app.before)
        packages = gzipped(plain(_added(whole, below, place / f"layers/{app.name}.tar")), 6)
        own = gzipped(plain(_own(app, place / f"layers/{app.name}-own.tar")), 6)
        whole.unlink()
        layers = [lowest, packages, own]
        made.add(app.name, layers)
        images[app.name] = {"gzip": sum(layer.size for layer in layers),
                            "plain": sum(layer.path.with_suffix("").stat().st_size for layer in layers)}
    noted.write_text(json.dumps({"wanted": wanted, "images": images}, indent=1))
    return place / "layout", images


def _install(target, packages, before=""):
    include = [f"--include={','.join(packages)}"] if packages else []
    hook = [f"--essential-hook={before}"] if before else []
    run("env", f"SOURCE_DATE_EPOCH={EPOCH}", "mmdebstrap", "--quiet", "--variant=minbase", *hook, *include, SUITE,
        target, MIRROR)
    return target


def _sum(tar, member):
    """What two entries of the same name must have in common to be the same."""
    content = hashlib.sha256(tar.extractfile(member).read()).digest() if member.isreg() else b""
    return member.type, member.mode, member.uid, member.gid, member.linkname, content


def _known(path):
    with tarfile.open(path) as tar:
        return {member.name: _sum(tar, member) for member in tar}


def _added(whole, below, target):
    """The entries of a tree that the tree below does not have, or has otherwise, with the directories above them."""
    with tarfile.open(whole) as before:
        added = {member.name for member in before if below.get(member.name) != _sum(before, member)}
    above = {str(directory) for name in added for directory in pathlib.PurePosixPath(name).parents}
    with tarfile.open(whole) as before, tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as after:
        for member in before:
            if member.name in added or member.isdir() and str(pathlib.PurePosixPath(member.name)) in above:
                after.addfile(member, before.extractfile(member) if member.isreg() else None)
    return target


def _own(app, target):
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted({name.rpartition("/")[0] for name in app.files}):
            tar.addfile(entry(name, 0, tarfile.DIRTYPE, 0o755))
        for name, text in app.files.items():
            tar.addfile(entry(name, len(text)), io.BytesIO(text.encode()))
    return target
